//! How fast checkpoints are written, read back and compressed here: `cargo run --release --example throughput [DIR]`.

use laneway_checkpoint::cachegen::{Bins, Element, Region, decode, encode};
use laneway_checkpoint::{
    Checkpoint, Codec, Config, Descriptor, ElementType, Exactness, FileStore, Library, MemoryStore, PageRecord, Reason,
    Scope,
};
use std::time::Instant;

const PAGE_TOKENS: u32 = 256;
const CHANNELS: usize = 16 * 1024;
const PAGES: u32 = 16;

fn noise(state: &mut u32) -> f32 {
    *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    (*state >> 8) as f32 / (1 << 23) as f32 - 1.0
}

fn page(index: u32, state: &mut u32) -> PageRecord {
    let values = (0..PAGE_TOKENS as usize * CHANNELS * 2).map(|_| half::f16::from_f32(noise(state) * noise(state)));
    let payload: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
    let row_bytes = CHANNELS as u32 * 2;
    let descriptor = Descriptor {
        layers: 0..16,
        layer_count: 16,
        tokens: index * PAGE_TOKENS..(index + 1) * PAGE_TOKENS,
        k_type: ElementType::F16,
        v_type: ElementType::F16,
        k_row_bytes: row_bytes,
        v_row_bytes: row_bytes,
        indexer_row_bytes: 0,
        v_element_bytes: 2,
        v_transposed: false,
        payload_bytes: payload.len() as u64,
        stored_bytes: payload.len() as u64,
        codec: Codec::Raw,
        components: None,
    };
    PageRecord { descriptor, payload }
}

fn report(what: &str, bytes: usize, begin: Instant) {
    let seconds = begin.elapsed().as_secs_f64();
    println!("{what}: {:.0} MB in {seconds:.3} s, {:.0} MB/s", bytes as f64 / 1e6, bytes as f64 / 1e6 / seconds);
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scope = Scope {
        model: "throughput",
        topology: "one",
        stage: 0,
        layers: 0..16,
        schema: 1,
        kv_layout: "layer-major",
        kv_type: "f16/f16",
        positions: "",
        namespace: "",
    };
    let mut state = 1;
    let checkpoint = Checkpoint {
        identity: scope.identity(),
        tokens: (0..PAGES * PAGE_TOKENS).collect(),
        logits: Some(vec![0.0; 262_144]),
        pages: (0..PAGES).map(|index| page(index, &mut state)).collect(),
    };
    let bytes: usize = checkpoint.pages.iter().map(|page| page.payload.len()).sum();

    let begin = Instant::now();
    let container = checkpoint.encode()?;
    report("container encode", bytes, begin);
    let begin = Instant::now();
    Checkpoint::decode(&container)?;
    report("container decode", bytes, begin);

    let directory = std::env::args().nth(1).map_or_else(std::env::temp_dir, Into::into).join("laneway-throughput");
    let config = Config { min_free_bytes: 0, ..Config::default() };
    let store = FileStore::open(&directory)?;
    run("files", pollster::block_on(Library::open(store, config.clone(), 0))?, &checkpoint, bytes);
    std::fs::remove_dir_all(&directory)?;
    run("memory", pollster::block_on(Library::open(MemoryStore::new(), config, 0))?, &checkpoint, bytes);

    let raw = &checkpoint.pages[0].payload;
    let region = |part: usize| Region {
        offset: part * raw.len() / 2,
        tokens: PAGE_TOKENS as usize,
        channels: CHANNELS,
        element: Element::F16,
        transposed: false,
        bins: Bins::Sixteen,
    };
    let begin = Instant::now();
    let archive = encode(raw, &[region(0), region(1)])?.ok_or("the archive is not smaller")?;
    report("cachegen encode", raw.len(), begin);
    let begin = Instant::now();
    decode(&archive, raw.len() as u64)?;
    report("cachegen decode", raw.len(), begin);
    println!("cachegen size: {:.1} % of raw", archive.len() as f64 * 100.0 / raw.len() as f64);
    Ok(())
}

fn run<S: laneway_checkpoint::ByteStore>(name: &str, mut library: Library<S>, checkpoint: &Checkpoint, bytes: usize) {
    let begin = Instant::now();
    let saved = pollster::block_on(library.save(checkpoint, Reason::Cold, 0));
    assert!(saved.id().is_some(), "{saved:?}");
    report(&format!("{name} save"), bytes, begin);
    let begin = Instant::now();
    let found = library.find(checkpoint.identity, &checkpoint.tokens, Exactness::Exact).expect("it was saved");
    assert!(pollster::block_on(library.load(&found, 1)).is_some());
    report(&format!("{name} load"), bytes, begin);
}
