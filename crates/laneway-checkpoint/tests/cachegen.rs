//! The CacheGen codec: error bounds, golden streams, and archives that are not what they say.
#![allow(clippy::unwrap_used)]

mod common;

use common::mix;
use half::f16;
use laneway_checkpoint::cachegen::{Bins, Element, Region, compress, decode, decode_into, encode, restore};
use laneway_checkpoint::{Codec, Descriptor, ElementType, FormatError, PageRecord};
use proptest::prelude::*;

/// A value that looks like KV: channels differ in size, tokens resemble each other.
fn value(token: usize, channel: usize, seed: u64) -> f32 {
    let noise = |at: u64| (mix(at ^ (seed << 48)) % 2001) as f32 / 1000.0 - 1.0;
    noise(channel as u64 | 1 << 40) * 4.0 + noise((token as u64) << 20 | channel as u64) * 0.5
}

fn put(page: &mut [u8], region: &Region, token: usize, channel: usize, value: f32) {
    let at = match region.transposed {
        false => token * region.channels + channel,
        true => channel * region.tokens + token,
    };
    let at = region.offset + at * region.element.bytes();
    match region.element {
        Element::F16 => page[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        Element::F32 => page[at..at + 4].copy_from_slice(&value.to_le_bytes()),
    }
}

fn get(page: &[u8], region: &Region, token: usize, channel: usize) -> f32 {
    let at = match region.transposed {
        false => token * region.channels + channel,
        true => channel * region.tokens + token,
    };
    let at = region.offset + at * region.element.bytes();
    match region.element {
        Element::F16 => f16::from_le_bytes([page[at], page[at + 1]]).to_f32(),
        Element::F32 => f32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]]),
    }
}

fn region(offset: usize, tokens: usize, channels: usize, element: Element, transposed: bool, bins: Bins) -> Region {
    Region { offset, tokens, channels, element, transposed, bins }
}

/// K as rows, V transposed, auxiliary bytes before, between and after.
fn sample(tokens: usize, channels: usize, element: Element) -> (Vec<u8>, Vec<Region>) {
    let block = tokens * channels * element.bytes();
    let regions = vec![
        region(24, tokens, channels, element, false, Bins::ThirtyTwo),
        region(24 + block + 5, tokens, channels, element, true, Bins::Sixteen),
    ];
    let mut page: Vec<u8> = (0..24 + block + 5 + block + 3).map(|at| mix(at as u64) as u8).collect();
    for region in &regions {
        for token in 0..tokens {
            for channel in 0..channels {
                put(&mut page, region, token, channel, value(token, channel, region.offset as u64));
            }
        }
    }
    (page, regions)
}

/// L86, L88: an error of at most half a level of the row, and nothing but K and V changes.
#[test]
fn values_stay_within_half_a_level_and_other_bytes_stay() {
    for (tokens, channels, element) in
        [(512, 24, Element::F16), (256, 7, Element::F32), (300, 40, Element::F32), (64, 96, Element::F32)]
    {
        let (page, regions) = sample(tokens, channels, element);
        let archive = encode(&page, &regions).unwrap().expect("smaller");
        let decoded = decode(&archive, page.len() as u64).unwrap();
        for region in &regions {
            let largest = if region.bins == Bins::ThirtyTwo { 15.0 } else { 7.0 };
            for token in 0..tokens {
                let row = |page: &[u8], channel| get(page, region, token, channel);
                let maximum = (0..channels).map(|channel| row(&page, channel).abs()).fold(0.0, f32::max);
                for channel in 0..channels {
                    let error = (row(&decoded, channel) - row(&page, channel)).abs();
                    assert!(error <= maximum * (0.5 / largest + 0.001), "{error} of {maximum}");
                }
            }
        }
        let mut restored = decoded.clone();
        for region in &regions {
            let bytes = region.offset..region.offset + tokens * channels * element.bytes();
            restored[bytes.clone()].copy_from_slice(&page[bytes]);
        }
        assert_eq!(restored, page);
        let again = encode(&decoded, &regions).unwrap().expect("smaller");
        assert_eq!(decode(&again, page.len() as u64).unwrap().len(), page.len());
    }
}

/// L88: rows of zeros, of one value and of the largest value are exact.
#[test]
fn zeros_and_row_maxima_are_exact() {
    let shape = region(0, 256, 4, Element::F16, false, Bins::ThirtyTwo);
    let mut page = vec![0; 256 * 4 * 2];
    for token in 0..256 {
        let rows = [[0.0; 4], [65504.0, -65504.0, 0.0, 65504.0], [-1.5, 1.5, 0.0, -1.5], [6e-8, 0.0, -6e-8, 6e-8]];
        for (channel, value) in rows[token % 4].into_iter().enumerate() {
            put(&mut page, &shape, token, channel, value);
        }
    }
    let archive = encode(&page, &[shape]).unwrap().expect("smaller");
    assert_eq!(decode(&archive, page.len() as u64).unwrap(), page);
}

/// L88: what is not finite is refused, wherever it is.
#[test]
fn a_value_that_is_not_finite_is_refused() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for element in [Element::F16, Element::F32] {
            let (mut page, regions) = sample(300, 8, element);
            put(&mut page, &regions[1], 299, 7, bad);
            let refused = encode(&page, &regions).unwrap_err();
            assert_eq!(refused.to_string(), "value is not finite");
        }
    }
}

#[test]
fn regions_must_lie_in_the_page_and_apart() {
    let page = vec![0; 4096];
    let shape = |offset, tokens, channels| region(offset, tokens, channels, Element::F16, false, Bins::Sixteen);
    for bad in [shape(0, 0, 4), shape(0, 4, 0), shape(4095, 1, 1), shape(usize::MAX, 1, 1), shape(0, usize::MAX, 2)] {
        assert!(encode(&page, std::slice::from_ref(&bad)).is_err(), "{bad:?}");
    }
    assert!(encode(&page, &[shape(0, 16, 16), shape(510, 16, 16)]).is_err());
}

fn record(payload: Vec<u8>, rows: Range) -> PageRecord {
    let bytes = payload.len() as u64;
    let row = (bytes / rows.0) as u32;
    let descriptor = Descriptor {
        layers: 0..1,
        layer_count: 1,
        tokens: 0..rows.0 as u32,
        k_type: ElementType::F16,
        v_type: ElementType::F16,
        k_row_bytes: row / 2,
        v_row_bytes: row / 2,
        indexer_row_bytes: 0,
        v_element_bytes: 2,
        v_transposed: false,
        payload_bytes: bytes,
        stored_bytes: bytes,
        codec: Codec::Raw,
        components: None,
    };
    PageRecord { descriptor, payload }
}

struct Range(u64);

fn kv_page(tokens: usize, channels: usize) -> (PageRecord, Vec<Region>) {
    let block = tokens * channels * 2;
    let regions = vec![
        region(0, tokens, channels, Element::F16, false, Bins::ThirtyTwo),
        region(block, tokens, channels, Element::F16, false, Bins::ThirtyTwo),
    ];
    let mut page = vec![0; block * 2];
    for region in &regions {
        for at in 0..tokens * channels {
            let (token, channel) = (at / channels, at % channels);
            put(&mut page, region, token, channel, value(token, channel, region.offset as u64));
        }
    }
    (record(page, Range(tokens as u64)), regions)
}

/// L86, L92: a page shrinks, or stays raw where the codec does not help or does not apply.
#[test]
fn a_page_is_compressed_only_where_that_helps() {
    let (page, regions) = kv_page(256, 64);
    let smaller = compress(page.clone(), &regions);
    assert_eq!(smaller.descriptor.codec, Codec::CacheGen);
    smaller.descriptor.validate().unwrap();
    assert!(smaller.payload.len() * 2 < page.payload.len(), "{} of {}", smaller.payload.len(), page.payload.len());
    let restored = restore(smaller).unwrap();
    assert_eq!(restored.descriptor, page.descriptor);

    let (short, regions) = kv_page(8, 64);
    assert_eq!(compress(short.clone(), &regions), short);
    let (mut infinite, regions) = kv_page(256, 64);
    put(&mut infinite.payload, &regions[0], 3, 3, f32::INFINITY);
    assert_eq!(compress(infinite.clone(), &regions), infinite);
    assert_eq!(compress(page.clone(), &[]), page);
}

/// L91: the archive must decode to exactly what the descriptor describes.
#[test]
fn an_archive_of_another_size_than_the_descriptor_is_refused() {
    let (page, regions) = kv_page(256, 64);
    let (other, other_regions) = kv_page(255, 64);
    let mut mixed = compress(page, &regions);
    mixed.payload = compress(other, &other_regions).payload;
    mixed.descriptor.stored_bytes = mixed.payload.len() as u64;
    assert_eq!(restore(mixed).unwrap_err().to_string(), "decoded size is not that of the page");
}

fn golden() -> [(&'static [u8], Vec<u8>, Vec<Region>); 2] {
    let f16 = sample(130, 12, Element::F16);
    let f32 = sample(130, 6, Element::F32);
    [(include_bytes!("data/page-f16.lwcg"), f16.0, f16.1), (include_bytes!("data/page-f32.lwcg"), f32.0, f32.1)]
}

/// L87, L88: streams written once stay what the encoder writes, and decode to the same bytes on every machine.
#[test]
fn golden_archives_stay_what_they_are() {
    let digests = include_str!("data/golden.txt").lines();
    for ((archive, page, regions), digest) in golden().into_iter().zip(digests) {
        assert_eq!(encode(&page, &regions).unwrap().as_deref(), Some(archive));
        let decoded = decode(archive, page.len() as u64).unwrap();
        assert_eq!(laneway_checkpoint::Digest::of(&decoded).to_string(), digest);
    }
}

/// L87: the header and record layout, field by field.
#[test]
fn the_archive_is_laid_out_as_documented() {
    let [(archive, page, regions), _] = golden();
    let u64_at = |at: usize| u64::from_le_bytes(archive[at..at + 8].try_into().unwrap()) as usize;
    assert_eq!(&archive[..4], b"LWCG");
    assert_eq!(u64_at(4), page.len());
    assert_eq!(archive[12..16], 5u32.to_le_bytes());
    let mut at = 16;
    let mut kinds = Vec::new();
    for _ in 0..5 {
        assert_eq!(archive[at + 2..at + 4], [0, 0]);
        let fields: Vec<usize> = (0..6).map(|field| u64_at(at + 4 + field * 8)).collect();
        kinds.push((archive[at], archive[at + 1], fields[0], fields[1], fields[2], fields[3], fields[4]));
        at += 52 + fields[5];
    }
    assert_eq!(at, archive.len());
    let block = 130 * 12 * 2;
    let second = regions[1].offset;
    assert_eq!(
        kinds,
        [
            (2, 1, 0, 24, 0, 0, 0),
            (1, 2, 24, block, 130, 0, 130),
            (2, 1, 24 + block, 5, 0, 0, 0),
            (3, 2, second, block, 130, 0, 130),
            (2, 1, second + block, 3, 0, 0, 0),
        ]
    );
}

fn refused(archive: &[u8], bytes: usize) -> String {
    let mut page = vec![0xa5; bytes];
    let error = decode_into(archive, &mut page).expect_err("refused");
    assert!(page.iter().all(|&byte| byte == 0xa5), "a refused archive wrote");
    assert!(decode(archive, bytes as u64).is_err());
    error.to_string()
}

/// L90: each malformed field is named, and the output keeps its bytes.
#[test]
fn malformed_archives_fail_closed() {
    let [(good, page, _), _] = golden();
    let bytes = page.len();
    let check = |at: usize, value: &[u8], expected: &str| {
        let mut changed = good.to_vec();
        changed[at..at + value.len()].copy_from_slice(value);
        assert_eq!(refused(&changed, bytes), expected);
    };
    let tile = 16 + 52 + 24;
    let header = tile + 52;
    check(0, b"X", "not a CacheGen archive");
    check(4, &[0], "decoded size is not that of the page");
    check(12, &[255; 4], "record count does not fit the archive");
    check(12, &4u32.to_le_bytes(), "55 or more bytes follow the end");
    check(16, &[9], "record kind is not known");
    check(18, &[1], "reserved bytes are not zero");
    check(17, &[2], "exact record does not fit the page or its payload");
    check(28, &[23], "exact record does not fit the page or its payload");
    check(20, &[1], "records leave a gap or overlap");
    check(20, &[255; 8], "exact record does not fit the page or its payload");
    check(60, &[255; 8], "truncated: archive needs 18446744073709551615 bytes, 3630 are left");
    check(tile, &[4], "tile record does not fit the page or its tile");
    check(tile + 1, &[4], "tile record does not fit the page or its tile");
    check(tile + 4, &[255; 8], "tile record does not fit the page or its tile");
    check(tile + 12, &[0; 8], "tile record does not fit the page or its tile");
    check(tile + 20, &[129], "tile record does not fit the page or its tile");
    check(tile + 28, &[1], "tile record does not fit the page or its tile");
    check(tile + 28, &[255; 8], "tile record does not fit the page or its tile");
    check(tile + 36, &[255; 8], "tile record does not fit the page or its tile");
    check(header, b"X", "not a tile");
    check(header + 4, &[17], "bins are neither 16 nor 32");
    check(header + 5, &[1], "reserved bytes are not zero");
    check(header + 6, &[0, 0], "tile has too few or too many values");
    check(header + 6, &[1, 1], "tile has too few or too many values");
    check(header + 8, &[255; 4], "tile has too few or too many values");
    check(header + 16, &f32::NAN.to_le_bytes(), "row maximum is negative or not finite");
    check(header + 16, &(-1f32).to_le_bytes(), "row maximum is negative or not finite");
    check(header + 16, &65505f32.to_le_bytes(), "row maximum is negative or not finite");
    let tables = header + 16 + 130 * 4;
    check(tables, &[1], "cumulative table does not rise from 0 to its total");
    check(tables + 64, &[0, 0], "cumulative table does not rise from 0 to its total");
    let lengths = tables + 12 * 66;
    check(lengths, &[0, 0], "stream lengths do not add up");
    for len in 0..good.len() {
        refused(&good[..len], bytes);
    }
    assert_eq!(refused(&[good, &[0]].concat(), bytes), "1 or more bytes follow the end");
    assert!(matches!(decode(good, bytes as u64 + 1), Err(FormatError::Invalid { .. })));
}

/// L90: coverage without gap or overlap, also of transposed tiles column by column.
#[test]
fn tiles_of_a_region_must_cover_it_once() {
    let shape = region(0, 600, 2, Element::F32, true, Bins::Sixteen);
    let mut page = vec![0; 600 * 2 * 4];
    for token in 0..600 {
        put(&mut page, &shape, token, 0, token as f32);
        put(&mut page, &shape, token, 1, 1.0);
    }
    let good = encode(&page, &[shape]).unwrap().expect("smaller");
    decode(&good, page.len() as u64).unwrap();
    let payload = u64::from_le_bytes(good[16 + 44..16 + 52].try_into().unwrap()) as usize;
    let second = 16 + 52 + payload;
    assert_eq!(good[second + 28..second + 30], 256u16.to_le_bytes());
    for start in [0u16, 255, 257, 300] {
        let mut changed = good.clone();
        changed[second + 28..second + 30].copy_from_slice(&start.to_le_bytes());
        assert_eq!(refused(&changed, page.len()), "records leave a gap or overlap");
    }
    let mut missing = good[..second].to_vec();
    missing[12] = 1;
    assert_eq!(refused(&missing, page.len()), "records leave a gap or overlap");
}

/// L90: 10 000 mutations of valid archives neither panic nor give a page of another size.
#[test]
fn mutated_archives_never_panic_and_never_change_size() {
    let mut state = 1;
    let mut next = |bound: usize| {
        state = mix(state);
        state as usize % bound
    };
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..10_000 {
        let (good, page, _) = &golden()[round % 2];
        let mut archive = good.to_vec();
        for _ in 0..1 + next(3) {
            match next(5) {
                0 => archive.truncate(next(archive.len().max(1))),
                1 => archive.extend_from_slice(&vec![next(256) as u8; next(60)]),
                _ if archive.is_empty() => {}
                2 => {
                    let at = next(archive.len().min(1100));
                    archive[at] = [0, 1, 127, 128, 255][next(5)];
                }
                _ => {
                    let at = next(archive.len());
                    archive[at] ^= 1 << next(8);
                }
            }
        }
        let mut out = vec![0xa5; page.len()];
        match (decode(&archive, page.len() as u64), decode_into(&archive, &mut out)) {
            (Ok(decoded), Ok(())) => {
                assert_eq!(decoded.len(), page.len());
                assert_eq!(decoded, out);
                accepted += 1;
            }
            (Err(_), Err(_)) => {
                assert!(out.iter().all(|&byte| byte == 0xa5));
                refused += 1;
            }
            (one, other) => panic!("{one:?} but {other:?}"),
        }
    }
    assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// L88: bounds hold for any shape and any finite values.
    #[test]
    fn any_finite_matrix_survives_within_its_bound(
        tokens in 1usize..300,
        channels in 1usize..9,
        transposed: bool,
        coarse: bool,
        seed: u64,
        scale in -30i32..30,
    ) {
        let bins = if coarse { Bins::Sixteen } else { Bins::ThirtyTwo };
        let shape = region(0, tokens, channels, Element::F32, transposed, bins);
        let mut page = vec![0; tokens * channels * 4 + 64 * 1024];
        for at in 0..tokens * channels {
            let sized = value(at / channels, at % channels, seed) * 2f32.powi(scale);
            put(&mut page, &shape, at / channels, at % channels, sized);
        }
        let rest = tokens * channels * 4;
        let zeros = region(rest, 256, 64, Element::F32, false, Bins::Sixteen);
        let archive = encode(&page, &[shape.clone(), zeros]).unwrap().expect("smaller");
        let decoded = decode(&archive, page.len() as u64).unwrap();
        let largest = if coarse { 7.0 } else { 15.0 };
        for token in 0..tokens {
            let row: Vec<f32> = (0..channels).map(|channel| get(&page, &shape, token, channel)).collect();
            let maximum = row.iter().fold(0f32, |maximum, value| maximum.max(value.abs()));
            for (channel, value) in row.iter().enumerate() {
                let error = (get(&decoded, &shape, token, channel) - value).abs();
                prop_assert!(error <= maximum * (0.5 / largest + 1e-5));
            }
        }
    }
}
