//! A checkpoint from a stranger, as it is and with the digest of its head made to fit: read or refused.
//!
//! `cargo +nightly fuzz run checkpoint crates/laneway-checkpoint/tests/data`
#![no_main]

use laneway_checkpoint::{Checkpoint, Digest};
use libfuzzer_sys::fuzz_target;

const FIXED_BYTES: usize = 56;
const PAGE_BYTES: usize = 160;

fuzz_target!(|data: &[u8]| {
    read(data);
    let mut sealed = data.to_vec();
    if let Some(head) = head_bytes(data).filter(|head| data.len().checked_sub(32).is_some_and(|end| *head <= end)) {
        let digest = Digest::of(&data[..head]);
        sealed[head..head + 32].copy_from_slice(&digest.0);
        read(&sealed);
    }
});

fn read(bytes: &[u8]) {
    if let Ok(checkpoint) = Checkpoint::decode(bytes) {
        assert_eq!(checkpoint.encode().expect("what was read is valid"), bytes);
    }
}

fn head_bytes(data: &[u8]) -> Option<usize> {
    let count = |at: usize| Some(u32::from_le_bytes(data.get(at..at + 4)?.try_into().ok()?) as usize);
    let tokens = count(40)?.checked_mul(4)?;
    let logits = if count(44)? > 0 { 32 } else { 0 };
    let pages = count(48)?.checked_mul(PAGE_BYTES)?;
    tokens.checked_add(logits)?.checked_add(pages)?.checked_add(FIXED_BYTES)
}
