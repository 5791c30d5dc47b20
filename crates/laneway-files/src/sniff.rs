use crate::FileError;

const ZIP: &str = "is a zip archive (a PyTorch checkpoint or a Python wheel, not the model inside it)";

/// Says what `bytes` look like, for the message when they are not the model that was expected.
pub(crate) fn not_a_model(expected: &'static str, bytes: &[u8]) -> FileError {
    FileError::NotAModel { expected, found: describe(bytes) }
}

fn describe(bytes: &[u8]) -> String {
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
    let magics: [(&[u8], &str); 11] = [
        (b"GGUF", "is a GGUF file"),
        (b"version https://git-lfs", "is a git-lfs pointer: fetch the file itself with `git lfs pull`"),
        (b"PK\x03\x04", ZIP),
        (b"PK\x05\x06", ZIP),
        (b"\x80\x02", "starts like a pickled PyTorch checkpoint"),
        (b"\x80\x04", "starts like a pickled PyTorch checkpoint"),
        (b"\x1f\x8b", "is gzip-compressed"),
        (b"\x28\xb5\x2f\xfd", "is zstd-compressed"),
        (b"\xfd7zXZ", "is xz-compressed"),
        (b"tjgg", "is a GGJT file, the predecessor of GGUF"),
        (b"lmgg", "is a GGML file, the predecessor of GGUF"),
    ];
    if bytes.is_empty() {
        return "is empty".into();
    }
    if let Some((_, meaning)) = magics.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return (*meaning).into();
    }
    for tag in ["<!doctype", "<html", "<?xml", "<head"] {
        if text.get(..tag.len()).is_some_and(|start| start.eq_ignore_ascii_case(tag.as_bytes())) {
            return format!("starts with `{}`: probably a web page", String::from_utf8_lossy(&text[..tag.len()]));
        }
    }
    if text.starts_with(b"{") && bytes.get(8) != Some(&b'{') {
        return "looks like JSON".into();
    }
    format!("starts with the bytes {}", bytes[..bytes.len().min(8)].escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_mistakes_are_recognised() {
        let check = |bytes: &[u8], words: &str| {
            let message = not_a_model("a GGUF file", bytes).to_string();
            assert!(message.contains(words), "{message}");
        };
        check(b"", "is empty");
        check(b"\n<!DOCTYPE html>", "starts with `<!DOCTYPE`: probably a web page");
        check(b"<html lang=en>", "probably a web page");
        check(b"PK\x03\x04....", "zip archive");
        check(b"version https://git-lfs.github.com/spec/v1\n", "git-lfs pointer");
        check(b"\x80\x02\x8a\n", "pickled PyTorch");
        check(b"{\"error\": 404}", "looks like JSON");
        check(b"\0\x01ab", "starts with the bytes \\x00\\x01ab");
    }
}
