//! Every block format against the values of an independent decoder.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod common;

use laneway_files::{Format, blocks};

#[test]
fn every_format_decodes_bit_for_bit() {
    let json = std::fs::read_to_string(common::fixtures().join("quant_blocks.json")).unwrap();
    let cases: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&json).unwrap();
    assert_eq!(cases.len(), Format::ALL.len());
    for (name, case) in cases {
        let format = Format::from_ggml(case["type"].as_u64().unwrap() as u32).unwrap();
        assert_eq!(format.name(), name);
        assert_eq!(
            (format.block_len() as u64, format.block_bytes() as u64),
            (case["block"].as_u64().unwrap(), case["bytes"].as_u64().unwrap())
        );
        let hex = case["hex"].as_str().unwrap().as_bytes();
        let digit = |c: u8| (c as char).to_digit(16).unwrap() as u8;
        let bytes: Vec<u8> = hex.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect();
        let expected: Vec<u32> =
            case["f32"].as_array().unwrap().iter().map(|x| (x.as_f64().unwrap() as f32).to_bits()).collect();
        let mut out = vec![f32::NAN; expected.len()];
        format.dequantize(&bytes, &mut out).unwrap();
        let found: Vec<u32> = out.iter().map(|x| x.to_bits()).collect();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn block_scales_follow_their_definitions() {
    for e in 0..=255u8 {
        assert_eq!(f64::from(blocks::e8m0_half(e)), 2f64.powi(i32::from(e) - 128), "{e}");
    }
    for s in 0..128u8 {
        let (e, m) = (i32::from(s >> 3), f64::from(s & 7));
        let value = if e == 0 { m * 2f64.powi(-9) } else { (1.0 + m / 8.0) * 2f64.powi(e - 7) };
        let expected = if s == 127 { 0.0 } else { value / 2.0 };
        assert_eq!(f64::from(blocks::ue4m3_half(s)), expected, "{s}");
    }
    let packed = [0xff, 0, 0, 0, 0, 0x40, 0, 0, 0x21, 0, 0, 0];
    let (scales, minimums) = blocks::k4_scales(&packed);
    assert_eq!((scales, minimums), ([63, 0, 0, 0, 49, 0, 0, 0], [0, 0, 0, 0, 2, 16, 0, 0]));
}
