//! What a library keeps, finds, evicts and refuses.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Faulty, PAGE, ROW, checkpoint, checkpoint_of, config, descriptor, identity, tokens, wait};
use laneway_checkpoint::cachegen::{Bins, Element, Region, compress, restore};
use laneway_checkpoint::{
    ByteStore, Checkpoint, Codec, Config, Exactness, Library, Match, MemoryStore, Reason, Refusal, Saved,
};
use std::sync::Arc;

const AMPLE: u64 = 1 << 30;
const HOUR: u64 = 60 * 60 * 1000;

type Memory = Arc<MemoryStore>;

fn open(store: &Memory, config: Config) -> Library<Memory> {
    wait(Library::open(store.clone(), config, 0)).unwrap()
}

fn library() -> (Memory, Library<Memory>) {
    let store = Memory::default();
    let library = open(&store, config(AMPLE));
    (store, library)
}

fn save<S: ByteStore>(library: &mut Library<S>, checkpoint: &Checkpoint, now_ms: u64) -> Saved {
    wait(library.save(checkpoint, Reason::Continued, now_ms))
}

#[track_caller]
fn stored<S: ByteStore>(library: &mut Library<S>, checkpoint: &Checkpoint, now_ms: u64) -> u64 {
    match save(library, checkpoint, now_ms) {
        Saved::Stored { written_bytes, .. } => written_bytes,
        other => panic!("{other:?}"),
    }
}

fn find<S: ByteStore>(library: &Library<S>, tokens: &[u32]) -> Option<Match> {
    library.find(identity("m"), tokens, Exactness::Exact)
}

#[track_caller]
fn load<S: ByteStore>(library: &mut Library<S>, tokens: &[u32], now_ms: u64) -> Checkpoint {
    let found = find(library, tokens).expect("found");
    wait(library.load(&found, now_ms)).expect("loaded")
}

fn objects(store: &Memory, folder: &str) -> Vec<String> {
    wait(store.list(folder)).unwrap().into_iter().map(|entry| entry.key).collect()
}

/// The part of a checkpoint up to a page end.
fn cut(checkpoint: &Checkpoint, len: usize) -> Checkpoint {
    let pages = checkpoint.pages.iter().filter(|page| page.descriptor.tokens.end as usize <= len);
    Checkpoint {
        identity: checkpoint.identity,
        tokens: checkpoint.tokens[..len].to_vec(),
        logits: None,
        pages: pages.cloned().collect(),
    }
}

/// L83, G44: what is loaded is what was saved, for the prompt itself and for what goes on from it.
#[test]
fn a_saved_checkpoint_is_found_and_loaded() {
    let (_, mut library) = library();
    let saved = checkpoint(1, 200);
    stored(&mut library, &saved, 5);
    assert_eq!(load(&mut library, &tokens(1, 200), 6), saved);
    let longer = find(&library, &tokens(1, 1000)).unwrap();
    assert_eq!((longer.tokens, longer.whole), (200, true));
    assert_eq!(find(&library, &tokens(2, 1000)), None);
    assert_eq!(library.find(identity("n"), &tokens(1, 200), Exactness::Exact), None);
}

/// G62: the longer of two; one changed token in both leaves none.
#[test]
fn the_longest_beginning_wins() {
    let (_, mut library) = library();
    for len in [64, 100, 300] {
        stored(&mut library, &checkpoint(1, len), 0);
    }
    let lengths = |len: usize| find(&library, &tokens(1, len)).map(|found| (found.tokens, found.whole));
    assert_eq!(lengths(400), Some((300, true)));
    assert_eq!(lengths(299), Some((256, false)));
    assert_eq!(lengths(100), Some((100, true)));
    assert_eq!(lengths(99), Some((64, true)));
    assert_eq!(lengths(63), None);
    let mut changed = tokens(1, 400);
    changed[63] += 1;
    assert_eq!(find(&library, &changed), None);
}

/// L100: a longer stored timeline serves a shorter common prefix, without logits.
#[test]
fn a_stored_timeline_serves_its_beginnings() {
    let (_, mut library) = library();
    let long = checkpoint(1, 300);
    stored(&mut library, &long, 0);
    let mut branch = tokens(1, 150);
    branch.extend(tokens(9, 50));
    let found = find(&library, &branch).unwrap();
    assert_eq!((found.tokens, found.whole), (128, false));
    assert_eq!(wait(library.load(&found, 0)).unwrap(), cut(&long, 128));
}

/// G57, L100: too short to store is refused, too short to use is a miss, and neither counts as a use.
#[test]
fn short_prefixes_are_neither_stored_nor_served() {
    let store = Memory::default();
    let mut library = open(&store, Config { min_tokens: 100, ..config(AMPLE) });
    assert!(matches!(save(&mut library, &checkpoint(1, 99), 0), Saved::Refused(Refusal::TooShort)));
    stored(&mut library, &checkpoint(1, 100), 0);
    assert_eq!(find(&library, &tokens(1, 99)), None);
    assert!(find(&library, &tokens(1, 100)).is_some());
    assert_eq!(library.list()[0].usage.hits, 0);
}

/// L109, C23: a conversation that grows by 1 000 tokens writes those pages and a small manifest.
#[test]
fn a_turn_writes_its_own_pages_only() {
    let (_, mut library) = library();
    let first = 64 * 150;
    stored(&mut library, &checkpoint(1, first), 0);
    let before = library.stats().written_bytes;
    let next = checkpoint(1, first + 1000);
    let manifest_bytes = (next.tokens.len() * 4 + next.pages.len() * 160 + 512) as u64;
    let Saved::Stored { written_bytes, shared_pages, .. } = save(&mut library, &next, 0) else { panic!("refused") };
    assert_eq!(shared_pages, 150);
    let own = (1000 * ROW + 400) as u64;
    assert!(written_bytes >= own && written_bytes <= own + manifest_bytes, "{written_bytes}");
    assert_eq!(library.stats().written_bytes - before, written_bytes);
    assert_eq!(load(&mut library, &next.tokens, 0), next);
}

/// C23: twenty turns write little more than their tokens once, not every prefix again.
#[test]
fn a_conversation_is_written_about_once() {
    let (_, mut library) = library();
    let mut pages_only = 0;
    for turn in 1..=20 {
        let written = stored(&mut library, &checkpoint(1, turn * 128), 0);
        let manifest = 56 + turn * (128 * 4 + 2 * 160) + 64 + 64;
        pages_only += written - manifest as u64 - 400;
    }
    assert_eq!(pages_only, (20 * 128 * ROW) as u64);
}

/// G56: what is there is not written again; logits that were missing are added.
#[test]
fn a_present_checkpoint_is_not_rewritten() {
    let (store, mut library) = library();
    let without = checkpoint_of("m", tokens(1, 100), false);
    stored(&mut library, &without, 0);
    let before = library.stats().written_bytes;
    assert!(matches!(save(&mut library, &without, 7), Saved::Present { .. }));
    assert_eq!(library.stats().written_bytes - before, 64);
    assert_eq!(library.list()[0].usage.last_used_ms, 7);
    let with = checkpoint(1, 100);
    let written = stored(&mut library, &with, 8);
    assert!(written < 100 * ROW as u64 + 400, "pages were written again: {written}");
    assert_eq!(load(&mut library, &with.tokens, 9), with);
    assert!(matches!(save(&mut library, &without, 9), Saved::Present { .. }));
    assert_eq!(library.stats().checkpoints, 1);
    assert_eq!((objects(&store, "pages/").len(), objects(&store, "logits/").len()), (2, 1));
    assert_eq!(library.stats().used_bytes, open(&store, config(AMPLE)).stats().used_bytes);
}

/// L109: pages that are there need not be exported.
#[test]
fn a_stored_page_is_known_before_it_is_exported() {
    let (_, mut library) = library();
    stored(&mut library, &checkpoint(1, 130), 0);
    let timeline = tokens(1, 300);
    let has = |library: &Library<Memory>, range: std::ops::Range<usize>| {
        library.has_page(identity("m"), &timeline[..range.end], &descriptor(range))
    };
    assert!(has(&library, 0..64) && has(&library, 64..128) && has(&library, 128..130));
    assert!(!has(&library, 128..192) && !has(&library, 0..128));
    assert!(!library.has_page(identity("n"), &timeline[..64], &descriptor(0..64)));
}

/// G63: restart finds everything, with its use; G64: a hit counts and does not rewrite the checkpoint.
#[test]
fn a_restart_finds_everything() {
    let (store, mut library) = library();
    let all: Vec<_> = (0..10).map(|conversation| checkpoint(conversation, 100 + conversation as usize * 50)).collect();
    for saved in &all {
        stored(&mut library, saved, 3);
    }
    let before = library.stats().written_bytes;
    load(&mut library, &all[4].tokens, 11);
    load(&mut library, &all[4].tokens, 12);
    assert_eq!(library.stats().written_bytes - before, 2 * 64);
    let listed = library.list();
    let used = library.stats().used_bytes;
    drop(library);
    let mut library = open(&store, config(AMPLE));
    assert_eq!(library.list(), listed);
    assert_eq!(library.stats().used_bytes, used);
    assert_eq!(listed.iter().map(|it| it.usage.hits).sum::<u32>(), 2);
    let hit = listed.iter().find(|it| it.usage.hits == 2).unwrap();
    assert_eq!((hit.usage.created_ms, hit.usage.last_used_ms, hit.usage.reason), (3, 12, Reason::Continued));
    for saved in &all {
        assert_eq!(load(&mut library, &saved.tokens, 0), *saved);
    }
}

/// G63, L109: any changed, shortened or missing object is a miss, is set aside, and does not come back.
#[test]
fn a_damaged_object_is_a_miss_and_is_set_aside() {
    for folder in ["manifests/", "pages/", "logits/"] {
        for damage in 0..4 {
            let (store, mut library) = library();
            let hurt = checkpoint(1, 130);
            let whole = checkpoint(2, 130);
            stored(&mut library, &hurt, 0);
            let key = objects(&store, folder).remove(0);
            stored(&mut library, &whole, 0);
            let body = wait(store.get(&key)).unwrap().unwrap();
            let middle = body.len() / 2;
            match damage {
                0 => wait(store.put(&key, &[&body[..middle], &[body[middle] ^ 1], &body[middle + 1..]])).unwrap(),
                1 => wait(store.put(&key, &[&body[..middle]])).unwrap(),
                2 => wait(store.put(&key, &[&body, &[0]])).unwrap(),
                _ => wait(store.delete(&key)).unwrap(),
            }
            let found = find(&library, &hurt.tokens).unwrap();
            assert_eq!(wait(library.load(&found, 0)), None, "{folder} {damage}");
            assert_eq!(find(&library, &hurt.tokens), None);
            assert_eq!(wait(library.load(&found, 0)), None);
            assert_eq!(load(&mut library, &whole.tokens, 0), whole);
            let stats = library.stats();
            assert_eq!((stats.misses, stats.hits, stats.checkpoints), (2, 1, 1));
            assert!(stats.quarantined >= 1);
            let reopened = open(&store, config(AMPLE));
            assert_eq!(reopened.list().len(), 1);
            assert_eq!(reopened.stats().used_bytes, stats.used_bytes);
            assert_eq!(stored(&mut library, &hurt, 0), stored(&mut open(&Memory::default(), config(AMPLE)), &hurt, 0));
            assert_eq!(load(&mut library, &hurt.tokens, 0), hurt);
        }
    }
}

/// L109: a broken or incomplete checkpoint is set aside when the store is opened, and orphans are removed.
#[test]
fn opening_sets_aside_what_is_broken_and_removes_orphans() {
    let (store, mut library) = library();
    for conversation in 0..3 {
        stored(&mut library, &checkpoint(conversation, 130), 0);
    }
    let manifests = objects(&store, "manifests/");
    wait(store.put(&manifests[0], &[b"LWCK nonsense"])).unwrap();
    let other = wait(store.get(&manifests[1])).unwrap().unwrap();
    wait(store.put(&manifests[2], &[&other])).unwrap();
    wait(store.put("pages/orphan", &[b"x"])).unwrap();
    wait(store.put("uses/orphan", &[b"x"])).unwrap();
    wait(store.put("manifests/notes.txt", &[b"not ours"])).unwrap();
    let mut library = open(&store, config(AMPLE));
    assert_eq!(library.list().len(), 1);
    assert_eq!(library.stats().quarantined, 2);
    assert_eq!(objects(&store, "quarantine/").len(), 2);
    assert_eq!((objects(&store, "pages/").len(), objects(&store, "uses/").len()), (3, 1));
    assert_eq!(objects(&store, "manifests/").len(), 2);
    let survivor = (0..3).find(|conversation| find(&library, &tokens(*conversation, 130)).is_some()).unwrap();
    assert_eq!(load(&mut library, &tokens(survivor, 130), 0), checkpoint(survivor, 130));
}

/// L109: what is set aside has a budget of its own.
#[test]
fn the_quarantine_is_bounded() {
    for (quarantine_bytes, kept) in [(0, 0), (25, 2), (1000, 5)] {
        let store = Memory::default();
        for at in 0..5 {
            wait(store.put(&format!("manifests/{at:064}"), &[b"0123456789"])).unwrap();
        }
        let library = open(&store, Config { quarantine_bytes, ..config(AMPLE) });
        assert_eq!(library.stats().quarantined, 5);
        assert_eq!(objects(&store, "quarantine/").len(), kept);
    }
}

fn bytes_of(checkpoint: &Checkpoint) -> u64 {
    let mut library = open(&Memory::default(), config(AMPLE));
    stored(&mut library, checkpoint, 0)
}

/// G65: a checkpoint and one per cent must fit, to the byte.
#[test]
fn the_budget_has_a_margin_of_one_per_cent() {
    let it = checkpoint(1, 64);
    let needed = bytes_of(&it) + bytes_of(&it) / 100;
    let mut fits = open(&Memory::default(), config(needed));
    stored(&mut fits, &it, 0);
    let store = Memory::default();
    let mut tight = open(&store, config(needed - 1));
    assert!(matches!(save(&mut tight, &it, 0), Saved::Refused(Refusal::Oversize)));
    assert!(["manifests/", "pages/", "logits/", "uses/"].iter().all(|folder| objects(&store, folder).is_empty()));
}

/// G65, G66: the least used goes first, the new one stays, and the budget holds after every write.
#[test]
fn eviction_keeps_what_is_used() {
    let one = bytes_of(&checkpoint(1, 100));
    let store = Memory::default();
    let mut library = open(&store, config(one * 4));
    for conversation in 1..=3 {
        stored(&mut library, &checkpoint(conversation, 100), conversation);
    }
    load(&mut library, &tokens(1, 100), 10);
    for conversation in 4..=8 {
        stored(&mut library, &checkpoint(conversation, 100), 10 + conversation);
        assert!(library.stats().used_bytes <= one * 4);
        assert!(find(&library, &tokens(conversation, 100)).is_some());
        assert!(find(&library, &tokens(1, 100)).is_some(), "the used one went at {conversation}");
    }
    assert_eq!(library.stats().evicted, 5);
    assert!(find(&library, &tokens(2, 100)).is_none());
    let stale = 8 * 24 * HOUR;
    for conversation in 9..=11 {
        stored(&mut library, &checkpoint(conversation, 100), stale + conversation);
    }
    assert!(find(&library, &tokens(1, 100)).is_none(), "hits of last week still count");
    assert_eq!(open(&store, config(one * 4)).stats().used_bytes, library.stats().used_bytes);
}

/// G66: with equal scores the older goes first.
#[test]
fn ties_are_settled_by_age() {
    let one = bytes_of(&checkpoint(1, 100));
    let mut library = open(&Memory::default(), config(one * 3 + one / 2));
    for (conversation, now_ms) in [(1, 30), (2, 10), (3, 20), (4, 40)] {
        stored(&mut library, &checkpoint(conversation, 100), now_ms);
    }
    assert!(find(&library, &tokens(2, 100)).is_none());
    assert!([1, 3, 4].iter().all(|conversation| find(&library, &tokens(*conversation, 100)).is_some()));
}

/// C19: making room for what is live does not evict the checkpoint that the incoming prompt needs.
#[test]
fn beginnings_of_the_incoming_prompt_are_protected() {
    let one = bytes_of(&checkpoint(1, 100));
    let mut library = open(&Memory::default(), config(one * 2 + one / 2));
    stored(&mut library, &checkpoint(1, 100), 0);
    stored(&mut library, &checkpoint(2, 100), 5);
    let incoming = tokens(1, 500);
    let protection = library.protect(identity("m"), &incoming);
    stored(&mut library, &checkpoint(3, 100), 6);
    assert!(find(&library, &incoming).is_some());
    assert!(find(&library, &tokens(2, 100)).is_none());
    library.unprotect(protection);
    stored(&mut library, &checkpoint(4, 100), 7);
    assert!(find(&library, &incoming).is_none());
}

/// L102, C19: if what must stay fills the budget, the new one is refused and nothing is evicted for it.
#[test]
fn a_refusal_for_space_evicts_nothing() {
    let one = bytes_of(&checkpoint(1, 100));
    let mut library = open(&Memory::default(), config(one * 3 + one / 2));
    for conversation in 1..=3 {
        stored(&mut library, &checkpoint(conversation, 100), conversation);
    }
    let _first = library.protect(identity("m"), &tokens(1, 100));
    let _second = library.protect(identity("m"), &tokens(2, 130));
    let before = library.list();
    let refused = save(&mut library, &checkpoint(4, 200), 9);
    assert!(matches!(refused, Saved::Refused(Refusal::InsufficientSpace)), "{refused:?}");
    assert_eq!(library.list(), before);
    assert_eq!(library.stats().evicted, 0);
}

/// L109: pages that a longer conversation shares outlive the shorter checkpoint.
#[test]
fn shared_pages_outlive_one_of_their_checkpoints() {
    let (store, mut library) = library();
    let (short, long) = (checkpoint(1, 128), checkpoint(1, 256));
    stored(&mut library, &short, 0);
    stored(&mut library, &long, 0);
    let id = find(&library, &tokens(1, 130)).unwrap().id;
    wait(library.forget(id)).unwrap();
    assert_eq!(load(&mut library, &long.tokens, 0), long);
    assert_eq!(find(&library, &tokens(1, 130)).map(|found| (found.tokens, found.whole)), Some((128, false)));
    let id = find(&library, &long.tokens).unwrap().id;
    wait(library.forget(id)).unwrap();
    assert!(["manifests/", "pages/", "logits/", "uses/"].iter().all(|folder| objects(&store, folder).is_empty()));
    assert_eq!(library.stats().used_bytes, 0);
}

/// L109: refusals have reasons that do not change.
#[test]
fn refusals_have_stable_names() {
    let it = checkpoint(1, 100);
    let name = |config: Config, free: u64, it: &Checkpoint| {
        let store = Faulty::default();
        store.free.store(free, std::sync::atomic::Ordering::Relaxed);
        let mut library = wait(Library::open(store, config, 0)).unwrap();
        match save(&mut library, it, 0) {
            Saved::Refused(refusal) => refusal.name(),
            _ => "stored",
        }
    };
    let device = |min_free_bytes| Config { min_free_bytes, ..config(AMPLE) };
    assert_eq!(name(config(1000), 0, &it), "oversize");
    assert_eq!(name(Config { read_only: true, ..config(AMPLE) }, 0, &it), "read_only");
    assert_eq!(name(Config { min_tokens: 101, ..config(AMPLE) }, 0, &it), "too_short");
    assert_eq!(name(device(10_000), 9_999, &it), "read_only_low_space");
    assert_eq!(name(device(10_000), 11_000, &it), "insufficient_space");
    assert_eq!(name(device(10_000), 20_000, &it), "stored");
    let mut odd = it.clone();
    odd.pages.pop();
    assert_eq!(name(config(AMPLE), 0, &odd), "invalid");
}

/// G61: what is live is stored at the end, and nothing after.
#[test]
fn shutdown_stores_what_is_live() {
    let (store, mut library) = library();
    let (one, two) = (checkpoint(1, 100), checkpoint(2, 100));
    let outcomes = wait(library.shutdown(&[&one, &two], 4));
    assert!(outcomes.iter().all(|saved| saved.id().is_some()));
    assert!(matches!(save(&mut library, &checkpoint(3, 100), 5), Saved::Refused(Refusal::Closed)));
    assert_eq!(load(&mut library, &one.tokens, 6), one);
    assert!(open(&store, config(AMPLE)).list().iter().all(|it| it.usage.reason == Reason::Shutdown));
}

/// L109: a read-only library finds and loads, and changes nothing whatever it meets.
#[test]
fn a_read_only_library_leaves_the_store_alone() {
    let (store, mut library) = library();
    stored(&mut library, &checkpoint(1, 100), 0);
    stored(&mut library, &checkpoint(2, 100), 0);
    let page = objects(&store, "pages/").remove(0);
    wait(store.put(&page, &[b"broken"])).unwrap();
    wait(store.put("pages/orphan", &[b"x"])).unwrap();
    let all = || {
        ["manifests/", "pages/", "logits/", "uses/", "quarantine/"].map(|folder| {
            objects(&store, folder).into_iter().map(|key| (wait(store.get(&key)).unwrap(), key)).collect::<Vec<_>>()
        })
    };
    let before = all();
    let mut library = open(&store, Config { read_only: true, ..config(AMPLE) });
    assert_eq!(library.list().len(), 1);
    for conversation in [1, 2] {
        if let Some(found) = find(&library, &tokens(conversation, 100)) {
            assert_eq!(wait(library.load(&found, 9)), Some(checkpoint(conversation, 100)));
        }
    }
    assert!(all() == before);
}

fn lossy(conversation: u64) -> (Checkpoint, Checkpoint) {
    let mut exact = checkpoint(conversation, 4 * PAGE);
    let whole = common::page(&exact.tokens, 0..4 * PAGE);
    exact.pages = vec![whole];
    // Bytes of a page in this test are noise, which is no f16 in general: make it one.
    for word in exact.pages[0].payload.chunks_exact_mut(2) {
        word[1] = 0x38 | word[1] & 0x83;
    }
    let half = 4 * PAGE * ROW / 2;
    let region = |offset| Region {
        offset,
        tokens: 4 * PAGE,
        channels: ROW / 4,
        element: Element::F16,
        transposed: false,
        bins: Bins::Sixteen,
    };
    let mut lossy = exact.clone();
    lossy.pages = lossy.pages.into_iter().map(|page| compress(page, &[region(0), region(half)])).collect();
    assert_eq!(lossy.pages[0].descriptor.codec, Codec::CacheGen);
    (exact, lossy)
}

/// L92: a lossy checkpoint has a name of its own and never serves who asks for an exact one.
#[test]
fn a_lossy_checkpoint_never_serves_an_exact_lookup() {
    let (_, mut library) = library();
    let (exact, approximate) = lossy(1);
    stored(&mut library, &approximate, 0);
    let timeline = &exact.tokens;
    assert_eq!(find(&library, timeline), None);
    let found = library.find(identity("m"), timeline, Exactness::Lossy).unwrap();
    assert_eq!(found.exactness, Exactness::Lossy);
    let loaded = wait(library.load(&found, 0)).unwrap();
    assert_eq!(loaded, approximate);
    assert_eq!(restore(loaded.pages[0].clone()).unwrap().descriptor, exact.pages[0].descriptor);
    stored(&mut library, &exact, 0);
    assert_eq!(library.list().len(), 2);
    let found = library.find(identity("m"), timeline, Exactness::Lossy).unwrap();
    assert_eq!(found.exactness, Exactness::Exact);
    assert_eq!(load(&mut library, timeline, 0), exact);
}

/// A session that moved to another machine goes on there, from the same bucket.
#[test]
fn another_machine_resumes_a_session() {
    let bucket: Memory = Memory::default();
    let mut here = open(&bucket, config(AMPLE));
    let mut there = open(&bucket, config(AMPLE));
    let first = checkpoint(1, 200);
    stored(&mut here, &first, 0);
    assert_eq!(find(&there, &first.tokens), None);
    wait(there.refresh(1)).unwrap();
    assert_eq!(load(&mut there, &first.tokens, 1), first);
    let second = checkpoint(1, 400);
    let Saved::Stored { shared_pages, .. } = save(&mut there, &second, 2) else { panic!("refused") };
    assert_eq!(shared_pages, 3);
    wait(here.refresh(3)).unwrap();
    assert_eq!(load(&mut here, &second.tokens, 3), second);
    let gone = find(&here, &first.tokens).unwrap();
    wait(there.forget(gone.id)).unwrap();
    assert_eq!(wait(here.load(&gone, 4)), None);
    assert_eq!(load(&mut here, &second.tokens, 4), second);
}

/// Both machines computed the same tokens and got other bytes: neither serves as the other.
#[test]
fn pages_of_two_machines_do_not_mix() {
    let bucket: Memory = Memory::default();
    let mut here = open(&bucket, config(AMPLE));
    let mut there = open(&bucket, config(AMPLE));
    let one = checkpoint(1, 200);
    let mut other = checkpoint(1, 260);
    other.pages[0].payload[0] ^= 1;
    stored(&mut here, &one, 0);
    stored(&mut there, &other, 0);
    let mut third = open(&bucket, config(AMPLE));
    assert_eq!(load(&mut third, &one.tokens, 0), one);
    assert_eq!(load(&mut third, &other.tokens, 0), other);
}

/// G63, L103: whichever operation fails, what was stored stays, and what is stored afterwards is whole.
#[test]
fn any_failing_operation_leaves_the_old_state() {
    let base = [checkpoint(1, 130), checkpoint(2, 130)];
    let next = checkpoint(1, 300);
    let budget = bytes_of(&next) * 3 / 2;
    let mut stored_at_last = false;
    for (at, once) in (1..60).flat_map(|at| [(at, false), (at, true)]) {
        let store = Arc::new(Faulty::default());
        store.once.store(once, std::sync::atomic::Ordering::Relaxed);
        let mut library = wait(Library::open(store.clone(), config(budget), 0)).unwrap();
        base.iter().for_each(|it| _ = stored(&mut library, it, 0));
        let _kept = library.protect(identity("m"), &base[0].tokens);
        store.countdown.store(at, std::sync::atomic::Ordering::Relaxed);
        let saved = save(&mut library, &next, 1);
        store.unlimit();
        if let Saved::Refused(refusal) = &saved {
            assert_eq!(refusal.name(), "store_failed");
        } else {
            assert_eq!(load(&mut library, &next.tokens, 2), next);
            stored_at_last = true;
        }
        assert_eq!(load(&mut library, &base[0].tokens, 2), base[0]);
        let mut reopened = wait(Library::open(store.clone(), config(budget), 0)).unwrap();
        assert_eq!(reopened.stats().quarantined, 0, "at {at}");
        assert_eq!(load(&mut reopened, &base[0].tokens, 2), base[0]);
        assert_eq!(
            find(&reopened, &next.tokens).is_some_and(|found| found.whole && found.tokens == 300),
            saved.id().is_some(),
            "at {at}"
        );
        for listed in reopened.list() {
            let found = Match { id: listed.id, tokens: listed.tokens, whole: true, exactness: Exactness::Exact };
            assert!(wait(reopened.load(&found, 3)).is_some());
        }
    }
    assert!(stored_at_last);
}

/// Disk full at byte k, for every k: the old state stays, nothing is left behind, and with space again it works.
#[test]
fn a_full_disk_at_any_byte_leaves_the_old_state() {
    let (old, next) = (checkpoint(1, 130), checkpoint(1, 300));
    let total = bytes_of(&next);
    for limit in (0..total).step_by(97) {
        let store = Arc::new(Faulty::default());
        let mut library = wait(Library::open(store.clone(), config(AMPLE), 0)).unwrap();
        stored(&mut library, &old, 0);
        let before = library.stats().used_bytes;
        store.limit_bytes(limit);
        let saved = save(&mut library, &next, 1);
        match &saved {
            Saved::Refused(refusal) => {
                assert_eq!(refusal.name(), "insufficient_space");
                assert_eq!(library.stats().used_bytes, before);
            }
            _ => assert_eq!(load(&mut library, &next.tokens, 1), next),
        }
        let reopened = wait(Library::open(store.clone(), config(AMPLE), 0)).unwrap();
        assert_eq!(reopened.stats().used_bytes, library.stats().used_bytes, "at {limit}");
        assert_eq!(reopened.stats().quarantined, 0);
        assert_eq!(load(&mut library, &old.tokens, 1), old);
        store.unlimit();
        save(&mut library, &next, 2);
        assert_eq!(load(&mut library, &next.tokens, 3), next);
    }
}
