//! A CacheGen archive from a stranger: decoded to exactly the announced size, or refused with nothing written.
//!
//! `cargo +nightly fuzz run archive crates/laneway-checkpoint/tests/data`
#![no_main]

use laneway_checkpoint::cachegen;
use libfuzzer_sys::fuzz_target;

/// Larger pages only make a run slower.
const LARGEST: u64 = 1 << 22;

fuzz_target!(|data: &[u8]| {
    let announced = data.get(4..12).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
    let bytes = announced.min(LARGEST);
    let mut page = vec![0xa5; bytes as usize];
    match (cachegen::decode(data, bytes), cachegen::decode_into(data, &mut page)) {
        (Ok(decoded), Ok(())) => assert_eq!(decoded, page),
        (Err(_), Err(_)) => assert!(page.iter().all(|&byte| byte == 0xa5)),
        _ => panic!("one decoder refused what the other took"),
    }
});
