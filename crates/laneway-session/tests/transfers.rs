//! K/V of kept sequences on its way out of an engine, and into another one.

// Helpers of tests, to which clippy.toml's allowance for test functions does not reach.
#![allow(clippy::unwrap_used)]

mod lab;

use std::sync::{Arc, Mutex};

use lab::{BLOCKS, CAUSAL, Did, LIMITS, Lab, Told, ended, request, turn};
use laneway_session::fake::{FakeDecoder, Fault, canvases, endless};
use laneway_session::*;

const ROOMY: EngineLimits = EngineLimits { lanes: 4, pages: 64, context_length: 200, ..LIMITS };

fn numbers(count: u32) -> Vec<u32> {
    (0..count).map(|n| n % 60 + 1).collect()
}

fn endless_turn(lab: &mut Lab, prompt: &[u32], max_tokens: usize) -> Told {
    lab.submit_with(1, prompt, |turn| {
        turn.max_tokens = Some(max_tokens);
        turn.decoder = Box::new(FakeDecoder { endless: true, ..Default::default() });
    })
}

/// A lab that has answered `prompt`, and all the tokens that it keeps.
fn after(limits: EngineLimits, prompt: &[u32], max_tokens: usize) -> (Lab, Vec<u32>) {
    let mut lab = Lab::new(limits);
    let told = endless_turn(&mut lab, prompt, max_tokens);
    lab.settle();
    let tokens = [prompt, &told.tokens()].concat();
    let kept = lab.service.peek(0, &tokens);
    (lab, tokens[..kept].to_vec())
}

fn exported(lab: &mut Lab, tokens: &[u32], from: usize) -> Exported {
    let (told, _) = lab.export(0, tokens, from);
    lab.settle();
    ended(&told).unwrap().unwrap()
}

/// An engine whose pages are all taken by nobody but the cache holds nothing for transfers.
fn assert_at_rest(lab: &Lab) {
    let lanes = lab.snapshot().lanes;
    assert_eq!((lanes.active, lanes.pages_used), (0, lanes.pages_cached));
}

/// L83, L69, L70, L46: what goes on from imported pages is what would have been computed, on engines of every kind.
#[test]
fn an_imported_sequence_answers_like_the_one_it_came_from() {
    for limits in [ROOMY, EngineLimits { depth: 2, ..ROOMY }] {
        let prompt = numbers(21);
        let (mut lab, tokens) = after(limits, &prompt, 9);
        assert_eq!(tokens.len(), 29);
        let Exported { tokens: count, pages } = exported(&mut lab, &tokens, 0);
        assert_eq!((count, pages.len(), pages.last().unwrap().len()), (29, 8, 8));
        assert_at_rest(&lab);

        let mut other = Lab::new(limits);
        endless_turn(&mut other, &[9, 9, 9, 9, 9], 1);
        other.settle();
        let (told, _) = other.import(0, &tokens, &pages);
        other.settle();
        assert_eq!(ended(&told), Some(Ok(29)));
        assert_at_rest(&other);
        let next = [&tokens[..], &[3, 4]].concat();
        let answer = endless_turn(&mut other, &next, 6);
        other.settle();
        assert_eq!(answer.finish().cached_tokens, 29);
        assert_eq!(answer.tokens(), endless(0, &next, 6));
    }
}

/// L81: there are no composite pages, and imports always go to fresh pages or to none.
#[test]
fn what_is_kept_already_is_not_written_again() {
    let (mut lab, tokens) = after(ROOMY, &numbers(21), 9);
    let pages = exported(&mut lab, &tokens, 0).pages;
    lab.log.clear();
    let (told, _) = lab.import(0, &tokens, &pages);
    lab.settle();
    assert_eq!(ended(&told), Some(Ok(29)));
    let writes = lab.log.iter().filter(|did| matches!(did, Did::Write(_))).count();
    assert_eq!(writes, 1, "all but the partly filled page are shared");
    assert_eq!(lab.service.sessions().len(), 1);
    assert_at_rest(&lab);
    // In another namespace nothing is shared.
    lab.log.clear();
    let (told, _) = lab.import(7, &tokens, &pages);
    lab.settle();
    assert_eq!(ended(&told), Some(Ok(29)));
    assert_eq!(lab.log.iter().filter(|did| matches!(did, Did::Write(_))).count(), 8);
    assert_eq!((lab.service.peek(7, &tokens), lab.service.sessions().len()), (29, 2));
}

/// L72, L73, L74, L76: of an unknown sequence nothing is exported, and no lane is taken for it.
#[test]
fn ranges_are_checked_before_anything_is_read() {
    let (mut lab, tokens) = after(ROOMY, &numbers(21), 9);
    let before = lab.snapshot().lanes;
    let error = |lab: &mut Lab, tokens: &[u32], from| {
        let (told, _) = lab.export(0, tokens, from);
        ended(&told).unwrap().unwrap_err()
    };
    assert_eq!(error(&mut lab, &[50, 51, 52, 53, 54, 55], 0), TransferError::NotKept);
    assert_eq!(error(&mut lab, &[], 0), TransferError::NotKept);
    let range = |start| TransferError::Range { start, end: 29, known: 29 };
    assert_eq!(error(&mut lab, &tokens, 32), range(32));
    assert_eq!(error(&mut lab, &tokens, usize::MAX), range(usize::MAX));
    assert_eq!(error(&mut lab, &tokens, 3), range(3));
    assert_eq!(lab.service.peek(0, &[50, 51, 52, 53, 54, 55]), 0);
    assert_eq!(lab.snapshot().lanes, before);
    assert_eq!(lab.snapshot().transfers_failed, 5);
}

/// L75: what there is to export is known without reading anything.
#[test]
fn a_probe_reads_nothing_and_agrees_with_the_export() {
    let (mut lab, tokens) = after(ROOMY, &numbers(21), 9);
    lab.log.clear();
    let longer = [&tokens[..], &[1, 2, 3]].concat();
    let probed = lab.service.peek(0, &longer);
    assert!(lab.log.is_empty());
    assert_eq!(exported(&mut lab, &longer, 0).tokens, probed);
    assert_eq!(exported(&mut lab, &longer, 28).pages.len(), 1);
}

/// L78, L80, L82: everything is checked first; what is refused leaves bytes, counts and admission as they were.
#[test]
fn a_refused_import_changes_nothing() {
    let (mut lab, tokens) = after(ROOMY, &numbers(21), 9);
    let pages = exported(&mut lab, &tokens, 0).pages;
    let mut other = Lab::new(EngineLimits { context_length: 28, ..ROOMY });
    endless_turn(&mut other, &[9, 9, 9, 9, 9], 1);
    other.settle();
    let before = (other.snapshot().lanes, other.log.len());
    let error = |lab: &mut Lab, tokens: &[u32], pages: &[Vec<u8>]| {
        let (told, _) = lab.import(0, tokens, pages);
        ended(&told).unwrap().unwrap_err()
    };
    assert_eq!(error(&mut other, &tokens, &pages), TransferError::Range { start: 0, end: 29, known: 28 });
    assert_eq!(error(&mut other, &[], &[]), TransferError::Range { start: 0, end: 0, known: 28 });
    assert_eq!(error(&mut other, &tokens[..3], &pages[..1]), TransferError::NotKept);
    let size = |page, bytes, expected| TransferError::Size { page, bytes, expected };
    assert_eq!(error(&mut other, &tokens[..24], &pages[..5]), size(5, 5, 6));
    assert_eq!(error(&mut other, &tokens[..22], &pages[..6]), size(5, 32, 16));
    let mut short = pages[..6].to_vec();
    short[2].pop();
    assert_eq!(error(&mut other, &tokens[..24], &short), size(2, 31, 32));
    assert_eq!((other.snapshot().lanes, other.log.len()), before);

    let mut none = Lab::with_config(ROOMY, ServiceConfig { max_prefixes: 0, ..Default::default() });
    endless_turn(&mut none, &[9, 9, 9, 9, 9], 1);
    none.settle();
    assert_eq!(error(&mut none, &tokens, &pages), TransferError::NotKept);
    let mut fixed = Lab::new(EngineLimits { row_bytes: 0, ..ROOMY });
    endless_turn(&mut fixed, &numbers(21), 9);
    fixed.settle();
    assert_eq!(error(&mut fixed, &tokens, &pages), TransferError::Unsupported);
    let (told, _) = fixed.export(0, &tokens, 0);
    assert_eq!(ended(&told), Some(Err(TransferError::Unsupported)));
    assert_eq!(error(&mut Lab::new(ROOMY), &tokens, &pages), TransferError::NotLoaded);
}

/// L101: pages that running turns hold are not taken; what only the cache holds is.
#[test]
fn an_import_evicts_what_is_cold_and_nothing_else() {
    let (mut lab, tokens) = after(ROOMY, &numbers(21), 9);
    let pages = exported(&mut lab, &tokens, 0).pages;
    let limits = EngineLimits { lanes: 1, pages: 10, ..ROOMY };
    let mut other = Lab::new(limits);
    endless_turn(&mut other, &[9; 20], 9);
    other.settle();
    let (told, _) = other.import(0, &tokens, &pages);
    other.settle();
    assert_eq!(ended(&told), Some(Ok(29)));
    assert!(other.snapshot().lanes.evicted > 0);

    let mut busy = Lab::new(limits);
    let running = endless_turn(&mut busy, &[9; 20], 9);
    busy.until(|lab| lab.snapshot().decode_rows > 3);
    let (told, _) = busy.import(0, &tokens, &pages);
    assert!(matches!(ended(&told), Some(Err(TransferError::NoPages { deficit: 1.. }))));
    busy.settle();
    assert_eq!(running.tokens(), endless(0, &[9; 20], 9));
}

/// L44, L51, L84: a transfer that fails half way ends once and leaves neither pages nor tokens behind.
#[test]
fn faults_cancels_and_the_end_of_the_model_end_transfers_once() {
    let (mut lab, tokens) = after(ROOMY, &numbers(40), 9);
    let pages = exported(&mut lab, &tokens, 0).pages;
    for (fault, call) in [(Fault::Step, "read_page"), (Fault::Step, "write_page")] {
        lab.service.clear_prefixes();
        let (import, _) = lab.import(0, &tokens, &pages);
        lab.step();
        lab.faults.inject(call, fault);
        let (export, _) = lab.export(0, &tokens, 0);
        lab.settle();
        if call == "write_page" {
            assert!(matches!(ended(&import), Some(Err(TransferError::Engine(_)))));
            assert_eq!((lab.service.peek(0, &tokens), ended(&export)), (0, Some(Err(TransferError::NotKept))));
        } else {
            // It was not kept yet when it was asked for.
            assert_eq!((ended(&import), ended(&export)), (Some(Ok(48)), Some(Err(TransferError::NotKept))));
            let (export, _) = lab.export(0, &tokens, 0);
            lab.settle();
            assert!(matches!(ended(&export), Some(Err(TransferError::Engine(_)))));
        }
        assert_at_rest(&lab);
    }
    for fault in [Fault::Lost, Fault::Panic] {
        let (mut lab, tokens) = after(ROOMY, &numbers(40), 9);
        let (export, _) = lab.export(0, &tokens, 0);
        let (second, _) = lab.export(0, &tokens, 8);
        lab.step();
        lab.faults.inject("read_page", fault);
        lab.settle();
        let error = |told| ended(told).unwrap().unwrap_err();
        match fault {
            Fault::Lost => assert!(matches!(error(&export), TransferError::Engine(_))),
            _ => assert_eq!(error(&export), TransferError::Internal),
        }
        assert_eq!(error(&second), error(&export));
        // The next turn has an engine again.
        let told = endless_turn(&mut lab, &numbers(5), 3);
        lab.settle();
        assert_eq!(told.tokens(), endless(0, &numbers(5), 3));
    }
    let (mut lab, tokens) = after(ROOMY, &numbers(40), 9);
    let (export, cancel) = lab.export(0, &tokens, 0);
    lab.step();
    cancel.cancel();
    lab.settle();
    assert_eq!(ended(&export), Some(Err(TransferError::Cancelled)));
    assert_at_rest(&lab);
    let (export, _) = lab.export(0, &tokens, 0);
    lab.step();
    lab.service.shutdown(lab.now);
    lab.settle();
    assert_eq!(ended(&export), Some(Err(TransferError::ShuttingDown)));
}

/// As many transfers as may wait, and one more.
#[test]
fn transfers_are_bounded() {
    let (mut lab, tokens) = after(ROOMY, &numbers(40), 9);
    let told: Vec<_> = (0..17).map(|_| lab.export(0, &tokens, 0).0).collect();
    assert_eq!(ended(&told[16]), Some(Err(TransferError::Busy { most: 16 })));
    lab.settle();
    assert!(told[..16].iter().all(|told| ended(told).unwrap().is_ok()));
    assert_at_rest(&lab);
}

/// C23, L106: while turns run, a page moves after every step and never two; the turns are as they were.
#[test]
fn transfers_go_between_steps() {
    for depth in [1, 2] {
        let (mut lab, tokens) = after(EngineLimits { depth, ..ROOMY }, &numbers(40), 9);
        let running = endless_turn(&mut lab, &[7, 7, 7, 7, 7], 40);
        lab.until(|lab| lab.snapshot().decode_rows > 12);
        lab.log.clear();
        let (export, _) = lab.export(0, &tokens, 0);
        lab.until(|_| ended(&export).is_some());
        let kinds: String = lab
            .log
            .iter()
            .filter_map(|did| match did {
                Did::Read(_) => Some('r'),
                Did::Collect => Some('c'),
                _ => None,
            })
            .collect();
        assert_eq!(kinds.matches('r').count(), 12);
        assert!(!kinds.contains("rr"), "{kinds}");
        lab.settle();
        assert_eq!(running.tokens(), endless(0, &[7, 7, 7, 7, 7], 40));
    }
}

/// C14: neither looking nor moving pages loads a model or keeps it loaded.
#[test]
fn transfers_do_not_keep_a_model_awake() {
    let config = ServiceConfig { idle_timeout_ms: 50, ..Default::default() };
    let mut lab = Lab::with_config(ROOMY, config);
    endless_turn(&mut lab, &numbers(21), 9);
    lab.settle();
    let since = lab.now;
    while lab.service.peek(0, &numbers(21)) > 0 {
        lab.export(0, &numbers(21), 0);
        lab.service.sessions();
        lab.now += 10;
        lab.settle();
        assert!(lab.now < since + 200);
    }
    assert_eq!((lab.snapshot().loaded, lab.snapshot().unloaded), (1, 1));
    let (told, _) = lab.export(0, &numbers(21), 0);
    lab.settle();
    assert_eq!(ended(&told), Some(Err(TransferError::NotLoaded)));
    assert_eq!(lab.snapshot().loaded, 1);
}

/// G30, C17: a side task finds what is kept, and leaves nothing; what others leave is told.
#[test]
fn one_shot_turns_leave_no_state() {
    let kept: Arc<Mutex<Vec<Kept>>> = Arc::default();
    let mut lab = Lab::new(ROOMY);
    let sink = kept.clone();
    lab.service.on_kept(Box::new(move |k| sink.lock().unwrap().push(k)));
    let chat = numbers(21);
    endless_turn(&mut lab, &chat, 9);
    lab.settle();
    let before = (lab.service.sessions(), lab.snapshot().lanes.pages_used);
    let side = [&chat[..], &[50; 9]].concat();
    let told = lab.submit_with(1, &side, |turn| {
        turn.max_tokens = Some(20);
        turn.decoder = Box::new(FakeDecoder { endless: true, ..Default::default() });
        turn.target = Target::OneShot;
    });
    lab.settle();
    assert_eq!(told.finish().cached_tokens, 21);
    assert_eq!(told.tokens(), endless(0, &side, 20));
    let after = lab.service.sessions();
    assert_eq!((after.len(), lab.snapshot().lanes.pages_used), (1, before.1));
    assert_eq!(after[0].tokens, before.0[0].tokens);
    let kept = kept.lock().unwrap();
    assert_eq!((kept.len(), kept[0].tokens.len()), (1, 29));
    assert_eq!((&kept[0].tokens[..21], kept[0].namespace), (&chat[..], 0));
}

#[derive(Default)]
struct Events(Mutex<Vec<LaneEvent>>);

impl Observer for Events {
    fn lane(&self, event: LaneEvent) {
        self.0.lock().unwrap().push(event);
    }
}

/// L41, L42
#[test]
fn exports_and_imports_are_observed_in_order() {
    let events = Arc::new(Events::default());
    let mut lab = Lab::new(ROOMY);
    lab.service.observe(events.clone());
    endless_turn(&mut lab, &numbers(21), 9);
    lab.settle();
    let (tokens, pages) = {
        let Exported { pages, .. } = exported(&mut lab, &[&numbers(21)[..], &endless(0, &numbers(21), 8)].concat(), 0);
        ([&numbers(21)[..], &endless(0, &numbers(21), 8)].concat(), pages)
    };
    lab.export(0, &[50; 8], 0);
    lab.import(3, &tokens, &pages);
    lab.settle();
    lab.import(3, &tokens, &pages[1..]);
    let told: Vec<LaneEvent> = events.0.lock().unwrap().split_off(1);
    assert_eq!(
        told,
        [
            LaneEvent::StateExported { tokens: 29 },
            LaneEvent::StateExportFailed,
            LaneEvent::StateImported { tokens: 29 },
            LaneEvent::StateImportFailed,
        ]
    );
    let snapshot = lab.snapshot();
    assert_eq!((snapshot.exported, snapshot.imported, snapshot.transfers_failed), (1, 1, 2));
}

/// L85: encoded blocks of models that revise a canvas move like any K/V; where nothing is cached, nothing is kept.
#[test]
fn canvases_move_in_whole_blocks() {
    for canvas in [CAUSAL, BLOCKS] {
        let limits = EngineLimits { canvas: Some(canvas), max_rows: 8, ..ROOMY };
        let mut lab = Lab::new(limits);
        let prompt = numbers(21);
        let told = lab.submit(&prompt, 12);
        lab.settle();
        let tokens = [&prompt[..], &told.tokens()].concat();
        let count = lab.service.peek(0, &tokens);
        let Exported { tokens: covered, pages } = exported(&mut lab, &tokens, 0);
        assert_eq!(covered, count);
        let mut other = Lab::new(limits);
        let (mut first, _) = turn(&[9, 9, 9, 9, 9, 9, 9]);
        first.max_tokens = Some(1);
        other.service.submit(other.now, request(1), first).unwrap();
        other.settle();
        let (imported, _) = other.import(0, &tokens[..count], &pages);
        other.settle();
        assert_eq!(ended(&imported), Some(Ok(count)));
        let next = [&tokens[..], &[3, 4, 5]].concat();
        let answer = other.submit(&next, 6);
        other.settle();
        assert!(answer.finish().cached_tokens > 0);
        let all = canvases(&limits, canvas.denoising, 0, &next, 6);
        let given = answer.tokens();
        assert_eq!(given, all[..given.len()]);
    }
}

/// L51: who asked is told once, also when the service goes without having been shut down.
#[test]
fn a_dropped_service_ends_its_transfers() {
    let (mut lab, tokens) = after(ROOMY, &numbers(40), 9);
    let pages = exported(&mut lab, &tokens, 0).pages;
    let (export, _) = lab.export(0, &tokens, 0);
    let (import, _) = lab.import(7, &tokens, &pages);
    lab.step();
    drop(lab);
    assert_eq!(ended(&export), Some(Err(TransferError::ShuttingDown)));
    assert_eq!(ended(&import), Some(Err(TransferError::ShuttingDown)));
}

/// A page that was read for a transfer that has ended meanwhile goes to no other.
#[test]
fn a_late_page_belongs_to_nobody() {
    let (mut lab, tokens) = after(ROOMY, &numbers(40), 9);
    let pages = exported(&mut lab, &tokens, 0).pages;
    let (first, _) = lab.export(0, &tokens, 0);
    assert!(matches!(lab.service.plan(lab.now), Action::Engine(EngineCall::ReadPage { .. })));
    lab.service.shutdown(lab.now);
    assert_eq!(ended(&first), Some(Err(TransferError::ShuttingDown)));
    let (second, _) = lab.export(0, &tokens, 0);
    lab.service.commit(lab.now, Outcome::PageRead(Ok(vec![7; 32])));
    lab.settle();
    if let Some(Ok(exported)) = ended(&second) {
        assert_eq!(exported.pages, pages);
    }
}

/// C17: a side task that fails takes nothing with it that a conversation with the same tokens left.
#[test]
fn a_failed_one_shot_turn_forgets_nothing_of_others() {
    let mut lab = Lab::new(ROOMY);
    let prompt = numbers(21);
    let side = lab.submit_with(1, &prompt, |turn| {
        turn.max_tokens = Some(60);
        turn.decoder = Box::new(FakeDecoder { endless: true, ..Default::default() });
        turn.target = Target::OneShot;
    });
    let chat = endless_turn(&mut lab, &prompt, 5);
    lab.until(|_| chat.finished().is_some());
    let kept = lab.service.sessions();
    assert_eq!((kept.len(), kept[0].tokens.len()), (1, 25));
    lab.until(|_| side.tokens().len() > 10);
    lab.faults.inject("collect", Fault::Step);
    lab.settle();
    assert!(matches!(side.error(), TurnError::Engine(_)));
    let tokens: Vec<_> = lab.service.sessions().into_iter().map(|session| session.tokens).collect();
    assert_eq!(tokens, [kept[0].tokens.clone()]);
    assert_at_rest(&lab);
}

/// L51: a listener that panics at the end of its turn keeps no transfer from being told.
#[test]
fn a_panic_while_everything_ends_leaves_no_transfer_without_an_end() {
    let (mut lab, tokens) = after(ROOMY, &numbers(40), 9);
    let pages = exported(&mut lab, &tokens, 0).pages;
    let (mut first, _) = turn(&[7; 5]);
    first.max_tokens = Some(60);
    first.decoder = Box::new(FakeDecoder { endless: true, ..Default::default() });
    first.events = Box::new(|event| assert!(!matches!(event, Event::Finished(_)), "injected panic"));
    lab.service.submit(lab.now, request(1), first).unwrap();
    lab.until(|lab| lab.snapshot().decode_rows > 12);
    let (export, _) = lab.export(0, &tokens, 0);
    let (import, _) = lab.import(7, &tokens, &pages);
    lab.faults.inject("collect", Fault::Lost);
    lab.settle();
    assert!(matches!(ended(&export), Some(Err(TransferError::Engine(_)))));
    assert!(matches!(ended(&import), Some(Err(TransferError::Engine(_)))));
}
