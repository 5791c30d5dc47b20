//! A page descriptor from a stranger: read or refused, and what is read is written back the same.
//!
//! `cargo +nightly fuzz run descriptor`
#![no_main]

use laneway_checkpoint::Descriptor;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(descriptor) = Descriptor::decode(data) {
        assert_eq!(descriptor.encode(), data);
    }
});
