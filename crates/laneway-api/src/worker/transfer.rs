//! Sessions of a worker's model, and their pages on the move.

use futures::future::BoxFuture;
use laneway_session::{Cancel, Export, Exported, Import, Kept, Session, TransferError};
use tokio::sync::oneshot;

use super::{HealthState, Message, Worker};

/// A question or order about kept sequences, for the worker's thread.
pub(super) enum Order {
    Export(Export),
    Import(Import),
    Peek(u64, Vec<u32>, oneshot::Sender<usize>),
    Sessions(oneshot::Sender<Vec<Session>>),
    OnKept(Box<dyn FnMut(Kept) + Send>),
    Clear(oneshot::Sender<()>),
}

/// What moves the pages of kept sequences, whatever model they belong to.
///
/// Dropping a future of a transfer ends the transfer between two pages.
pub trait Transfers: Send + Sync {
    /// Reads the pages of as many leading tokens as are kept, from position `from` on.
    fn export(&self, namespace: u64, tokens: Vec<u32>, from: usize) -> BoxFuture<'_, Result<Exported, TransferError>>;

    /// Writes pages and keeps them; resolves to the number of leading tokens that are kept then.
    fn import(
        &self,
        namespace: u64,
        tokens: Vec<u32>,
        pages: Vec<Vec<u8>>,
    ) -> BoxFuture<'_, Result<usize, TransferError>>;

    /// Leading tokens that a turn would find.
    fn peek(&self, namespace: u64, tokens: Vec<u32>) -> BoxFuture<'_, usize>;

    /// The sequences in the prefix cache, those that were used last first.
    fn sessions(&self) -> BoxFuture<'_, Vec<Session>>;

    /// Forgets all sequences that no turn or read uses.
    fn clear(&self) -> BoxFuture<'_, ()>;

    /// Whether a model is being loaded.
    fn is_loading(&self) -> bool;

    /// Tells of what turns and reads leave behind; must not block.
    fn on_kept(&self, kept: Box<dyn FnMut(Kept) + Send>);
}

struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl<K: PartialEq + Clone + Send + Sync + 'static> Transfers for Worker<K> {
    fn export(&self, namespace: u64, tokens: Vec<u32>, from: usize) -> BoxFuture<'_, Result<Exported, TransferError>> {
        let (sender, receiver) = oneshot::channel();
        let cancel = Cancel::new();
        // Whoever asked may have left.
        let done = Box::new(move |result| drop(sender.send(result)));
        self.send(Message::Order(Order::Export(Export { namespace, tokens, from, cancel: cancel.clone(), done })));
        Box::pin(async move {
            let _cancel = CancelOnDrop(cancel);
            receiver.await.unwrap_or(Err(TransferError::ShuttingDown))
        })
    }

    fn import(
        &self,
        namespace: u64,
        tokens: Vec<u32>,
        pages: Vec<Vec<u8>>,
    ) -> BoxFuture<'_, Result<usize, TransferError>> {
        let (sender, receiver) = oneshot::channel();
        let cancel = Cancel::new();
        let done = Box::new(move |result| drop(sender.send(result)));
        self.send(Message::Order(Order::Import(Import { namespace, tokens, pages, cancel: cancel.clone(), done })));
        Box::pin(async move {
            let _cancel = CancelOnDrop(cancel);
            receiver.await.unwrap_or(Err(TransferError::ShuttingDown))
        })
    }

    fn peek(&self, namespace: u64, tokens: Vec<u32>) -> BoxFuture<'_, usize> {
        let (sender, receiver) = oneshot::channel();
        self.send(Message::Order(Order::Peek(namespace, tokens, sender)));
        Box::pin(async { receiver.await.unwrap_or(0) })
    }

    fn sessions(&self) -> BoxFuture<'_, Vec<Session>> {
        let (sender, receiver) = oneshot::channel();
        self.send(Message::Order(Order::Sessions(sender)));
        Box::pin(async { receiver.await.unwrap_or_default() })
    }

    fn clear(&self) -> BoxFuture<'_, ()> {
        let (sender, receiver) = oneshot::channel();
        self.send(Message::Order(Order::Clear(sender)));
        Box::pin(async { receiver.await.unwrap_or_default() })
    }

    fn is_loading(&self) -> bool {
        self.health().state == HealthState::Loading
    }

    fn on_kept(&self, kept: Box<dyn FnMut(Kept) + Send>) {
        self.send(Message::Order(Order::OnKept(kept)));
    }
}

impl Order {
    pub(super) fn take<K: PartialEq + Clone>(self, service: &mut laneway_session::Service<K>) {
        match self {
            Self::Export(export) => service.export(export),
            Self::Import(import) => service.import(import),
            // Those who asked may have left.
            Self::Peek(namespace, tokens, answer) => drop(answer.send(service.peek(namespace, &tokens))),
            Self::Sessions(answer) => drop(answer.send(service.sessions())),
            Self::OnKept(kept) => service.on_kept(kept),
            Self::Clear(answer) => {
                service.clear_prefixes();
                // Whoever asked may have left.
                _ = answer.send(());
            }
        }
    }
}
