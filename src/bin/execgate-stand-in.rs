//! What the exec wrapper becomes where a command doesn't simply run: see [`execgate::stand_in`].
#![no_main]

execgate::raw_main!(execgate::stand_in::main);
