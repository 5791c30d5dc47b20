//! Pages that leave the engine or come into it, between its steps.

use super::Scheduler;
use crate::action::EngineCall;
use crate::engine::EngineError;
use crate::lanes::Held;
use crate::observer::LaneEvent;
use crate::transfer::{Export, Exported, Import, TransferError};
use crate::turn::Cancel;

/// Transfers that may wait or run at a time; each holds pages.
const MOST: usize = 16;

/// A transfer that waits for its next page.
pub(super) struct Transfer {
    held: Held,
    /// The page that is moved next.
    next: usize,
    cancel: Cancel,
    way: Way,
}

enum Way {
    Out {
        pages: Vec<Vec<u8>>,
        done: Box<dyn FnOnce(Result<Exported, TransferError>) + Send>,
    },
    In {
        namespace: u64,
        tokens: Vec<u32>,
        pages: Vec<Vec<u8>>,
        done: Box<dyn FnOnce(Result<usize, TransferError>) + Send>,
    },
}

impl Scheduler {
    /// Begins to read the pages of a kept sequence, or says at once why not.
    pub fn export(&mut self, export: Export) {
        let Export { namespace, tokens, from, cancel, done } = export;
        match self.check_export(namespace, &tokens, from) {
            Ok(held) => {
                let next = from / self.limits.page_positions;
                let way = Way::Out { pages: Vec::new(), done };
                self.transfers.push_back(Transfer { held, next, cancel, way });
            }
            Err(error) => {
                self.told(LaneEvent::StateExportFailed);
                done(Err(error));
            }
        }
    }

    fn check_export(&mut self, namespace: u64, tokens: &[u32], from: usize) -> Result<Held, TransferError> {
        self.check_room()?;
        let held = self.lanes.hold(namespace, tokens);
        let known = held.tokens;
        let error = match known {
            0 => TransferError::NotKept,
            _ if from >= known || !from.is_multiple_of(self.limits.page_positions) => {
                TransferError::Range { start: from, end: known, known }
            }
            _ => return Ok(held),
        };
        self.lanes.give_back(held);
        Err(error)
    }

    /// Begins to write pages, or says at once why not; nothing is written before everything was checked.
    pub fn import(&mut self, import: Import) {
        let Import { namespace, tokens, pages, cancel, done } = import;
        match self.check_import(namespace, &tokens, &pages) {
            Ok(held) => {
                let next = held.shared;
                let way = Way::In { namespace, tokens, pages, done };
                self.transfers.push_back(Transfer { held, next, cancel, way });
                self.publish();
            }
            Err(error) => {
                self.told(LaneEvent::StateImportFailed);
                done(Err(error));
            }
        }
    }

    fn check_import(&mut self, namespace: u64, tokens: &[u32], pages: &[Vec<u8>]) -> Result<Held, TransferError> {
        self.check_room()?;
        let (page_positions, known) = (self.limits.page_positions, self.limits.turn_positions());
        if tokens.is_empty() || tokens.len() > known {
            return Err(TransferError::Range { start: 0, end: tokens.len(), known });
        }
        if !self.lanes.is_keepable(tokens.len()) {
            return Err(TransferError::NotKept);
        }
        let expected = tokens.len().div_ceil(page_positions);
        if pages.len() != expected {
            return Err(TransferError::Size { page: pages.len(), bytes: pages.len(), expected });
        }
        for (page, content) in pages.iter().enumerate() {
            let positions = (tokens.len() - page * page_positions).min(page_positions);
            let (bytes, expected) = (content.len(), positions * self.limits.row_bytes);
            if bytes != expected {
                return Err(TransferError::Size { page, bytes, expected });
            }
        }
        self.lanes.reserve(namespace, tokens).map_err(|deficit| TransferError::NoPages { deficit })
    }

    fn check_room(&self) -> Result<(), TransferError> {
        match self.limits.row_bytes {
            0 => Err(TransferError::Unsupported),
            _ if self.transfers.len() >= MOST => Err(TransferError::Busy { most: MOST }),
            _ => Ok(()),
        }
    }

    /// The next page to move: one after every step while turns run, so that they hardly wait, and imports first,
    /// because somebody waits for them.
    /// With nothing else to do, `is_idle`, page after page.
    pub fn transfer(&mut self, is_idle: bool) -> Option<EngineCall> {
        if !self.may_transfer && !is_idle && (self.running() > 0 || !self.in_flight.is_empty()) {
            return None;
        }
        loop {
            let is_import = |transfer: &Transfer| matches!(transfer.way, Way::In { .. });
            let index = self.transfers.iter().position(is_import).unwrap_or(0);
            let transfer = self.transfers.get_mut(index)?;
            if transfer.cancel.is_cancelled() {
                self.end_transfer(index, Err(TransferError::Cancelled));
            } else if let Some(page) = transfer.held.page(transfer.next) {
                self.may_transfer = false;
                let first = transfer.next * self.limits.page_positions;
                let positions = (transfer.held.tokens - first).min(self.limits.page_positions);
                let call = match &mut transfer.way {
                    Way::Out { .. } => EngineCall::ReadPage { page, positions },
                    Way::In { pages, .. } => {
                        EngineCall::WritePage { page, positions, content: std::mem::take(&mut pages[transfer.next]) }
                    }
                };
                // Whoever is called for is at the front when the answer comes.
                self.transfers.swap(0, index);
                self.is_moving = true;
                return Some(call);
            } else {
                self.end_transfer(index, Ok(()));
            }
        }
    }

    /// The content of the page that was to be read.
    pub fn page_read(&mut self, content: Result<Vec<u8>, EngineError>) {
        let (page_positions, row_bytes) = (self.limits.page_positions, self.limits.row_bytes);
        let Some(transfer) = self.moved() else { return };
        let positions = transfer.held.tokens - transfer.next * page_positions;
        let expected = positions.min(page_positions) * row_bytes;
        let error = match (content, &mut transfer.way) {
            (Ok(content), Way::Out { pages, .. }) if content.len() == expected => {
                pages.push(content);
                transfer.next += 1;
                return self.end_if_complete();
            }
            (Ok(content), _) => format!("a page of {} bytes instead of {expected}", content.len()),
            (Err(error), _) => error.to_string(),
        };
        self.end_transfer(0, Err(TransferError::Engine(error)));
    }

    /// The page was written, or not.
    pub fn page_written(&mut self, result: Result<(), EngineError>) {
        let Some(transfer) = self.moved() else { return };
        match result {
            Ok(()) => {
                transfer.next += 1;
                self.end_if_complete();
            }
            Err(error) => self.end_transfer(0, Err(TransferError::Engine(error.to_string()))),
        }
    }

    /// The transfer whose page the engine had; none if it has ended since.
    fn moved(&mut self) -> Option<&mut Transfer> {
        self.transfers.front_mut().filter(|_| std::mem::take(&mut self.is_moving))
    }

    fn end_if_complete(&mut self) {
        if self.transfers.front().is_some_and(|transfer| transfer.next >= transfer.held.pages()) {
            self.end_transfer(0, Ok(()));
        }
    }

    fn end_transfer(&mut self, index: usize, result: Result<(), TransferError>) {
        let Some(Transfer { held, way, .. }) = self.transfers.remove(index) else { return };
        let covered = held.tokens;
        match way {
            Way::Out { pages, done } => {
                self.lanes.give_back(held);
                self.publish();
                self.told(match &result {
                    Ok(()) => LaneEvent::StateExported { tokens: covered },
                    Err(_) => LaneEvent::StateExportFailed,
                });
                done(result.map(|()| Exported { tokens: covered, pages }));
            }
            Way::In { namespace, tokens, done, .. } => {
                if result.is_ok() {
                    self.lanes.keep_reserved(namespace, &tokens, held);
                } else {
                    self.lanes.give_back(held);
                }
                self.publish();
                self.told(match &result {
                    Ok(()) => LaneEvent::StateImported { tokens: covered },
                    Err(_) => LaneEvent::StateImportFailed,
                });
                done(result.map(|()| covered));
            }
        }
    }

    /// Ends all transfers.
    pub(super) fn fail_transfers(&mut self) {
        self.is_moving = false;
        while !self.transfers.is_empty() {
            self.end_transfer(0, Err(self.farewell.clone()));
        }
    }

    fn told(&self, event: LaneEvent) {
        self.metrics.update(|m| match event {
            LaneEvent::StateExported { .. } => m.exported += 1,
            LaneEvent::StateImported { .. } => m.imported += 1,
            _ => m.transfers_failed += 1,
        });
        self.lanes.tell_lane(event);
    }
}
