//! The exec wrapper: see [`execgate::wrapper`].
#![no_main]

execgate::raw_main!(execgate::wrapper::main);
