use std::fmt;

const SCOPE: &str = "laneway 2026-11 checkpoint scope v1";
const TOKENS: &str = "laneway 2026-11 checkpoint tokens v1";

/// A BLAKE3 hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The hash of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// The hash of everything that `source` yields.
    ///
    /// # Errors
    /// Those of the source.
    pub fn of_reader(source: &mut impl std::io::Read) -> std::io::Result<Self> {
        let mut hasher = blake3::Hasher::new();
        let mut chunk = vec![0; 1 << 20];
        loop {
            match source.read(&mut chunk) {
                Ok(0) => return Ok(Self(*hasher.finalize().as_bytes())),
                Ok(count) => hasher.update(&chunk[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
        }
    }

    /// The hash of `parts` under a purpose of its own.
    pub(crate) fn derive(purpose: &str, parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(purpose);
        for part in parts {
            hasher.update(part);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// Reads 64 lower-case hexadecimal digits.
    pub fn from_hex(hex: &str) -> Option<Self> {
        if hex.len() != 64 || hex.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return None;
        }
        blake3::Hash::from_hex(hex).ok().map(|hash| Self(*hash.as_bytes()))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Everything besides tokens that decides the content of KV pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope<'a> {
    /// Which weights: best a hash of the files.
    pub model: &'a str,
    /// How the model is spread over devices and stages.
    pub topology: &'a str,
    /// Index of the stage within the topology.
    pub stage: u32,
    /// First layer, and one past the last.
    pub layers: std::ops::Range<u32>,
    /// Version of the numbers that an engine's pages consist of.
    pub schema: u32,
    /// Order of the values in a page.
    pub kv_layout: &'a str,
    /// Types of K and V.
    pub kv_type: &'a str,
    /// What positions mean: context size, RoPE settings, positions per page.
    pub positions: &'a str,
    /// Chosen by the caller to keep users apart.
    pub namespace: &'a str,
}

impl Scope<'_> {
    /// The hash of all fields; equal only if every one of them is.
    pub fn identity(&self) -> Identity {
        let mut hasher = blake3::Hasher::new_derive_key(SCOPE);
        for text in [self.model, self.topology, self.kv_layout, self.kv_type, self.positions, self.namespace] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        for number in [self.stage, self.layers.start, self.layers.end, self.schema] {
            hasher.update(&number.to_le_bytes());
        }
        Identity(Digest(*hasher.finalize().as_bytes()))
    }
}

/// What a checkpoint must share with an engine to be used by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(pub Digest);

/// Whether pages hold what the engine computed, or an approximation of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Exactness {
    /// Bit for bit.
    Exact,
    /// Some page went through a lossy codec.
    Lossy,
}

/// The running hash of an identity and the tokens so far.
#[derive(Clone, Debug)]
pub struct TokenChain {
    hasher: blake3::Hasher,
    len: usize,
}

impl TokenChain {
    /// The chain of no tokens.
    pub fn new(identity: Identity, exactness: Exactness) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(TOKENS);
        hasher.update(&identity.0.0);
        hasher.update(&[exactness as u8]);
        Self { hasher, len: 0 }
    }

    /// Adds tokens from `tokens`, the whole timeline, until the chain covers `len` of them.
    pub fn advance(&mut self, tokens: &[u32], len: usize) {
        let mut buffer = [0; 1024];
        for chunk in tokens[self.len..len].chunks(buffer.len() / 4) {
            for (bytes, token) in buffer.chunks_exact_mut(4).zip(chunk) {
                bytes.copy_from_slice(&token.to_le_bytes());
            }
            self.hasher.update(&buffer[..chunk.len() * 4]);
        }
        self.len = len;
    }

    /// The hash of what is covered so far.
    pub fn digest(&self) -> Digest {
        Digest(*self.hasher.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope() -> Scope<'static> {
        Scope {
            model: "m",
            topology: "one",
            stage: 0,
            layers: 0..4,
            schema: 1,
            kv_layout: "layer-major",
            kv_type: "f16/f16",
            positions: "rope 10000, 32 a page",
            namespace: "",
        }
    }

    /// L97: every part of the identity matters, and text cannot move from one field into the next.
    #[test]
    fn any_difference_is_another_identity() {
        let base = scope();
        let others = [
            Scope { model: "n", ..scope() },
            Scope { topology: "two", ..scope() },
            Scope { stage: 1, ..scope() },
            Scope { layers: 1..4, ..scope() },
            Scope { layers: 0..5, ..scope() },
            Scope { schema: 2, ..scope() },
            Scope { kv_layout: "token-major", ..scope() },
            Scope { kv_type: "f16/f32", ..scope() },
            Scope { positions: "rope 20000, 32 a page", ..scope() },
            Scope { namespace: "a", ..scope() },
            Scope { model: "mo", topology: "ne", ..scope() },
        ];
        let mut seen = vec![base.identity()];
        for other in others {
            assert!(!seen.contains(&other.identity()), "{other:?}");
            seen.push(other.identity());
        }
        assert_eq!(base.identity(), scope().identity());
    }

    /// L97: the chain depends on every token before it, and not on how it was advanced.
    #[test]
    fn a_chain_is_a_function_of_its_tokens() {
        let tokens: Vec<u32> = (0..2000).collect();
        let identity = scope().identity();
        let mut steps = TokenChain::new(identity, Exactness::Exact);
        for len in [1, 300, 301, 2000] {
            steps.advance(&tokens, len);
        }
        let mut whole = TokenChain::new(identity, Exactness::Exact);
        whole.advance(&tokens, 2000);
        assert_eq!(steps.digest(), whole.digest());

        let mut changed = tokens.clone();
        changed[0] ^= 1;
        let mut other = TokenChain::new(identity, Exactness::Exact);
        other.advance(&changed, 2000);
        assert_ne!(other.digest(), whole.digest());

        let mut lossy = TokenChain::new(identity, Exactness::Lossy);
        lossy.advance(&tokens, 2000);
        assert_ne!(lossy.digest(), whole.digest());
    }

    #[test]
    fn a_digest_reads_back_its_own_hex() {
        let digest = Digest::of(b"x");
        assert_eq!(Digest::from_hex(&digest.to_string()), Some(digest));
        assert_eq!(Digest::from_hex(&digest.to_string().to_uppercase()), None);
        assert_eq!(Digest::from_hex("00"), None);
    }
}
