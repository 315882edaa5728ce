//! The gate and its operator's commands: see [`execgate::cli`].
#![no_main]

execgate::raw_main!(execgate::cli::main);
