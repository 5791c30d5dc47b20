use super::*;

#[test]
fn only_clearly_other_content_types_are_refused() {
    for kind in ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON", "application/ld+json", ""] {
        assert!(is_json(kind), "{kind}");
    }
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "jsonp"] {
        assert!(!is_json(kind), "{kind}");
    }
}

fn sent(body: &[u8], coding: Option<&str>) -> Result<Bytes, ApiError> {
    let mut headers = HeaderMap::new();
    if let Some(coding) = coding {
        headers.insert(header::CONTENT_ENCODING, coding.parse().unwrap());
    }
    decode((Bytes::copy_from_slice(body), codings(&headers)?), 1000)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::read::GzEncoder::new(bytes, flate2::Compression::fast());
    let mut packed = Vec::new();
    encoder.read_to_end(&mut packed).unwrap();
    packed
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

#[test]
fn compressed_bodies_are_unpacked() {
    let text = br#"{"state": "a state that is worth packing, packing, packing"}"#;
    assert_eq!(sent(text, None).unwrap(), text[..]);
    assert_eq!(sent(text, Some("identity")).unwrap(), text[..]);
    assert_eq!(sent(&gzip(text), Some("GZIP")).unwrap(), text[..]);
    assert_eq!(sent(&zstd(text), Some("zstd")).unwrap(), text[..]);
    assert_eq!(sent(&[zstd(text), zstd(b"!")].concat(), Some("zstd")).unwrap(), [&text[..], b"!"].concat()[..]);
    assert_eq!(sent(&zstd(&gzip(text)), Some("gzip, zstd")).unwrap(), text[..]);
    let raw = |bytes: &[u8]| {
        let mut packed = Vec::new();
        flate2::read::DeflateEncoder::new(bytes, flate2::Compression::fast()).read_to_end(&mut packed).unwrap();
        packed
    };
    assert_eq!(sent(&raw(text), Some("deflate")).unwrap(), text[..]);
    let mut zlib = Vec::new();
    flate2::read::ZlibEncoder::new(&text[..], flate2::Compression::fast()).read_to_end(&mut zlib).unwrap();
    assert_eq!(sent(&zlib, Some("deflate")).unwrap(), text[..]);
}

#[test]
fn broken_unknown_and_bursting_bodies_are_refused() {
    let status = |body: &[u8], coding| sent(body, Some(coding)).unwrap_err().status;
    for coding in ["gzip", "deflate", "zstd"] {
        assert_eq!(status(b"{\"state\": 1}", coding), 400, "{coding}");
        assert_eq!(status(&zstd(b"cut short")[..8], coding), 400, "{coding}");
    }
    assert_eq!(status(b"", "br"), 415);
    assert_eq!(status(b"", "gzip, gzip, gzip"), 415);
    let large = vec![b' '; 1_000_000];
    assert_eq!(status(&gzip(&large), "gzip"), 413);
    assert_eq!(status(&zstd(&large), "zstd"), 413);
}

/// A frame with a window of 2^`log` bytes and `blocks` blocks of 128 KiB of spaces, each in four bytes.
fn spaces(log: u8, blocks: usize) -> Vec<u8> {
    let mut frame = vec![0x28, 0xB5, 0x2F, 0xFD, 0, (log - 10) << 3];
    for block in 1..=blocks {
        let header = (128 << 10) << 3 | 1 << 1 | u32::from(block == blocks);
        frame.extend_from_slice(&header.to_le_bytes()[..3]);
        frame.push(b' ');
    }
    frame
}

#[test]
fn a_large_window_lets_no_bomb_pass() {
    // 40 GiB, which nothing must be made to hold.
    for log in [10, 20, 27, 40] {
        let body = spaces(log, 320_000);
        assert_eq!(unpack_status(&body, 4 << 20), Some(413), "a window of 2^{log}");
    }
    assert_eq!(unpack_status(&spaces(40, 2), 256 << 10), None);
    assert_eq!(unpack_status(&spaces(40, 2), (256 << 10) - 1), Some(413));
}

#[test]
fn frames_without_content_are_bounded_and_skipped() {
    let skipped = [0x50, 0x2A, 0x4D, 0x18, 2, 0, 0, 0, 7, 7];
    assert_eq!(sent(&[&skipped[..], &zstd(b"{}")].concat(), Some("zstd")).unwrap(), b"{}"[..]);
    assert_eq!(unpack_status(&[0x50, 0x2A, 0x4D, 0x18, 255, 255, 255, 255, 7], 1000), Some(400));
    let empty = [0x28, 0xB5, 0x2F, 0xFD, 0, 0, 1, 0, 0];
    assert_eq!(unpack_status(&empty.repeat(MOST_FRAMES), 1000), None);
    assert_eq!(unpack_status(&empty.repeat(MOST_FRAMES + 1), 1000), Some(400));
}

fn unpack_status(body: &[u8], limit: usize) -> Option<u16> {
    Coding::Zstd.decode(body, limit).err().map(|error| error.status)
}

#[test]
fn forms_of_other_pages_are_told_apart() {
    let foreign = |origin: Option<&str>, allowed: &[&str]| {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, "localhost:8080".parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, HeaderValue::from_bytes(origin.as_bytes()).unwrap());
        }
        let allowed: Vec<String> = allowed.iter().map(|name| name.to_string()).collect();
        foreign_origin(&headers, &allowed).is_some()
    };
    assert!(!foreign(None, &[]));
    assert!(!foreign(Some("http://localhost:8080"), &[]));
    assert!(!foreign(Some("https://app.example"), &["https://app.example/"]));
    assert!(!foreign(Some("https://app.example"), &["*"]));
    for origin in ["https://evil.example", "null", "http://localhost:8081", "", "é://localhost"] {
        assert!(foreign(Some(origin), &["https://app.example"]), "{origin}");
    }
}

#[test]
fn a_form_yields_its_request_part() {
    let form =
        |body: &'static str| form_request("multipart/form-data; boundary=x", Bytes::from_static(body.as_bytes()));
    let part = |name: &str| format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{{}}\r\n--x--\r\n");
    assert_eq!(form(part("request").leak()).unwrap(), "{}");
    assert_eq!(form(part("image").leak()).unwrap_err().status, 400);
    assert_eq!(form("no form").unwrap_err().status, 400);
}
