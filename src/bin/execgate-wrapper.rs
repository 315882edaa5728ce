//! The exec wrapper: see [`execgate::wrapper`].
#![cfg_attr(not(feature = "std"), no_std)]
#![no_main]

execgate::raw_main!(execgate::wrapper::main);
