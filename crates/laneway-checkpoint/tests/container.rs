//! The container and the page descriptor, intact and otherwise.
#![allow(clippy::unwrap_used)]

mod common;

use common::{checkpoint, checkpoint_of, descriptor, mix, tokens};
use laneway_checkpoint::{Checkpoint, Codec, Component, Descriptor, Digest, ElementType, Exactness, FormatError};
use proptest::prelude::*;

/// G53, L83: tokens, logits and rows come back bit for bit.
#[test]
fn a_checkpoint_comes_back_bit_for_bit() {
    for (len, logits) in [(1, false), (64, true), (65, true), (700, false)] {
        let before = checkpoint_of("m", tokens(7, len), logits);
        let bytes = before.encode().unwrap();
        let after = Checkpoint::decode(&bytes).unwrap();
        assert_eq!(after, before);
        assert_eq!(after.encode().unwrap(), bytes);
    }
    let mut odd = checkpoint(1, 64);
    odd.logits = Some(vec![f32::NAN, f32::NEG_INFINITY, -0.0]);
    let after = Checkpoint::decode(&odd.encode().unwrap()).unwrap();
    let bits = |it: &Checkpoint| it.logits.as_ref().unwrap().iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&after), bits(&odd));
}

/// G54, L90: every truncation, every flipped bit and every appended byte is refused.
#[test]
fn no_damaged_container_is_read() {
    let bytes = checkpoint(3, 70).encode().unwrap();
    for len in 0..bytes.len() {
        assert!(Checkpoint::decode(&bytes[..len]).is_err(), "length {len}");
    }
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        assert!(Checkpoint::decode(&changed).is_err(), "byte {at}");
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    assert!(matches!(Checkpoint::decode(&longer), Err(FormatError::Trailing { .. })));
}

/// Makes the digest of a head fit again after a change.
fn reseal(bytes: &mut [u8]) {
    let count = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize;
    let logits = if count(44) > 0 { 32 } else { 0 };
    let head = count(40).saturating_mul(4).saturating_add(logits).saturating_add(count(48).saturating_mul(160)) + 56;
    if head + 32 <= bytes.len() {
        let digest = Digest::of(&bytes[..head]);
        bytes[head..head + 32].copy_from_slice(&digest.0);
    }
}

/// G54: 5 000 heads that lie under a fitting digest are refused in peace, or are what they say.
#[test]
fn a_head_that_lies_under_a_fitting_digest_is_checked_all_the_same() {
    let good = checkpoint(3, 200).encode().unwrap();
    let mut state = 1;
    let mut next = |bound: usize| {
        state = mix(state);
        state as usize % bound
    };
    let (mut read, mut refused) = (0, 0);
    for _ in 0..5_000 {
        let mut bytes = good.clone();
        for _ in 0..1 + next(2) {
            let at = if next(2) == 0 { 8 + next(48) } else { 56 + 800 + next(700) };
            bytes[at] = [0, 1, 64, 127, 128, 255, bytes[at] ^ 1][next(7)];
        }
        reseal(&mut bytes);
        match Checkpoint::decode(&bytes) {
            Ok(it) => {
                assert_eq!(it.encode().unwrap(), bytes);
                read += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(read > 100 && refused > 100, "{read} read, {refused} refused");
}

/// G63: a container put together from two intact ones is refused.
#[test]
fn a_mixed_container_is_refused() {
    let [one, other] = [1, 2].map(|conversation| checkpoint(conversation, 70).encode().unwrap());
    assert_eq!(one.len(), other.len());
    for at in (57..one.len()).step_by(7) {
        let mixed = [&one[..at], &other[at..]].concat();
        assert!(Checkpoint::decode(&mixed).is_err(), "cut at {at}");
    }
}

/// G54: tag and version are told apart from damage, and sizes that overflow from sizes that do not.
#[test]
fn the_head_says_why_it_is_refused() {
    let bytes = checkpoint(3, 70).encode().unwrap();
    let with = |at: usize, value: u32| {
        let mut changed = bytes.clone();
        changed[at..at + 4].copy_from_slice(&value.to_le_bytes());
        Checkpoint::decode(&changed).unwrap_err()
    };
    assert!(matches!(with(0, 0), FormatError::NotOurs { .. }));
    assert!(matches!(with(4, 2), FormatError::Version { found: 2, .. }));
    assert_eq!(with(40, 0).to_string(), "token count is zero or past the largest position");
    assert_eq!(with(40, u32::MAX).to_string(), "token count is zero or past the largest position");
    assert!(matches!(with(40, i32::MAX as u32), FormatError::Truncated { what: "tokens", .. }));
    assert!(matches!(with(48, u32::MAX), FormatError::Truncated { what: "page descriptors", .. }));
    assert!(matches!(with(56, 123_456), FormatError::Digest { what: "head" }));
}

#[test]
fn a_checkpoint_that_contradicts_itself_is_not_written() {
    let good = checkpoint(3, 130);
    let check = |change: fn(&mut Checkpoint), expected: &str| {
        let mut changed = good.clone();
        change(&mut changed);
        assert_eq!(changed.encode().unwrap_err().to_string(), expected);
    };
    check(|it| it.tokens.clear(), "token count is zero or past the largest position");
    check(|it| it.tokens.push(1), "pages do not end with the tokens");
    check(|it| it.pages.swap(0, 1), "page order leaves a gap or overlaps");
    check(|it| it.logits = Some(Vec::new()), "logits count is zero or past the largest token");
    check(|it| it.pages.clear(), "page count is zero");
    check(|it| _ = it.pages[1].payload.pop(), "page payload has another length than its descriptor says");
}

/// L92: one page of a lossy codec makes the checkpoint a lossy one.
#[test]
fn exactness_is_that_of_the_worst_page() {
    let mut it = checkpoint(3, 130);
    assert_eq!(it.exactness(), Exactness::Exact);
    it.pages[1].descriptor.codec = Codec::CacheGen;
    assert_eq!(it.exactness(), Exactness::Lossy);
}

fn composite() -> Descriptor {
    let mut it = descriptor(0..64);
    it.components = Some([
        Component { offset: 0, bytes: it.payload_bytes, tokens: 0..64 },
        Component { offset: it.payload_bytes, bytes: 160, tokens: 48..64 },
    ]);
    it.payload_bytes += 160;
    it.stored_bytes += 160;
    it
}

/// L79: all fields survive.
#[test]
fn a_descriptor_comes_back_whole() {
    let mut transposed = descriptor(64..128);
    transposed.v_transposed = true;
    transposed.indexer_row_bytes = 8;
    transposed.payload_bytes += 64 * 8;
    transposed.stored_bytes = 100;
    transposed.codec = Codec::CacheGen;
    let mut blocks = descriptor(0..64);
    (blocks.k_type, blocks.v_type, blocks.v_element_bytes) = (ElementType::Q8_0, ElementType::Q4_0, 0);
    for it in [descriptor(0..1), composite(), transposed, blocks] {
        assert_eq!(Descriptor::decode(&it.encode()).unwrap(), it);
    }
}

/// L74, L80: fields that do not agree are refused, each by name.
#[test]
fn a_descriptor_that_contradicts_itself_is_refused() {
    let check = |base: Descriptor, change: fn(&mut Descriptor), expected: &str| {
        let mut changed = base;
        change(&mut changed);
        let found = Descriptor::decode(&changed.encode()).unwrap_err().to_string();
        assert!(found.starts_with(expected), "{found}");
    };
    let single = || descriptor(0..64);
    check(single(), |it| it.layers = 2..2, "layer range");
    check(single(), |it| it.layers = 0..u32::MAX, "layer range");
    check(single(), |it| it.layer_count = 3, "layer count");
    check(single(), |it| it.layer_count = 0, "layer count");
    check(single(), |it| it.tokens = 64..64, "token range");
    check(single(), |it| it.payload_bytes += 1, "payload size");
    check(single(), |it| it.stored_bytes += 1, "stored size");
    check(single(), |it| it.codec = Codec::CacheGen, "stored size");
    check(single(), |it| it.v_element_bytes = 4, "V element size");
    check(single(), |it| it.indexer_row_bytes = 4, "payload size");
    check(
        single(),
        |it| (it.k_row_bytes, it.v_row_bytes, it.payload_bytes, it.stored_bytes) = (0, 0, 0, 0),
        "payload size",
    );
    check(composite(), |it| it.components.as_mut().unwrap()[0].offset = 1, "base component");
    check(composite(), |it| it.components.as_mut().unwrap()[0].tokens = 1..64, "base component");
    check(composite(), |it| it.components.as_mut().unwrap()[1].tokens = 48..63, "window component");
    check(composite(), |it| it.components.as_mut().unwrap()[1].offset += 1, "window component");
    check(composite(), |it| it.components.as_mut().unwrap()[1].bytes = u64::MAX, "window component");
    check(composite(), |it| it.components = None, "payload size");
}

/// L80: version, component count and indexer flag on the wire.
#[test]
fn the_wire_of_a_descriptor_is_checked() {
    let check = |base: Descriptor, at: usize, value: u8, expected: &str| {
        let mut bytes = base.encode();
        bytes[at] = value;
        let found = Descriptor::decode(&bytes).unwrap_err().to_string();
        assert!(found.starts_with(expected), "{found}");
    };
    check(descriptor(0..64), 0, 3, "page descriptor version 3");
    check(descriptor(0..64), 0, 2, "component count");
    check(descriptor(0..64), 5, 2, "component count");
    check(composite(), 0, 1, "component count");
    check(composite(), 5, 1, "component count");
    check(descriptor(0..64), 4, 2, "codec");
    check(descriptor(0..64), 6, 0, "element type");
    check(descriptor(0..64), 8, 1, "indexer flag");
    check(descriptor(0..64), 8, 4, "descriptor flags");
    check(descriptor(0..64), 127, 1, "descriptor padding");
    check(descriptor(0..64), 28, 255, "payload size");
    let mut long = descriptor(0..64).encode();
    long.push(0);
    assert!(Descriptor::decode(&long).is_err());
    assert!(Descriptor::decode(&long[..127]).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// L80: whatever bytes decode to a descriptor are its only encoding.
    #[test]
    fn a_descriptor_has_one_encoding(at in 0usize..112, value: u8, composed: bool) {
        let mut bytes = if composed { composite() } else { descriptor(0..64) }.encode();
        bytes[at] = value;
        if let Ok(it) = Descriptor::decode(&bytes) {
            prop_assert_eq!(it.encode(), bytes);
        }
    }

    #[test]
    fn any_bytes_are_refused_in_peace(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(Checkpoint::decode(&bytes).is_err());
        let tagged = [b"LWCK\x01\0\0\0".as_slice(), &bytes].concat();
        prop_assert!(Checkpoint::decode(&tagged).is_err());
        _ = Descriptor::decode(&bytes);
    }
}

/// L83, G53: the first release's bytes stay readable.
#[test]
fn a_container_of_version_one_is_still_read() {
    let golden = include_bytes!("data/checkpoint-v1.lwck");
    let expected = checkpoint(11, 70);
    assert_eq!(Checkpoint::decode(golden).unwrap(), expected);
    assert_eq!(expected.encode().unwrap(), golden);
}
