use std::future::Future;

use laneway_protocol::systemone::{Answers, DecisionRequest};

use crate::error::{DecideError, ReadError};
use crate::plan::{PartLogits, ReadPart};
use crate::reader::Reader;

/// Answers a request with a function that runs a read.
///
/// `read` is called for all reads that are wanted at a time before the first of them is awaited, so one that submits at
/// once, such as to a lane of [`laneway_session`], has them queued together; one that starts when it
/// is awaited runs them one by one. Dropping the future drops what has not ended.
///
/// # Errors
/// A request that this model cannot read, the first read that fails, logits that do not match their read or are not
/// numbers.
///
/// # Example
/// A model that is fond of the first label of every slot:
/// ```
/// # use std::{future::Future, pin::pin, sync::Arc, task::{Context, Poll, Waker}};
/// # use laneway_decisions::{ReadPart, Reader, ReaderOptions, Readout, decide};
/// # use laneway_protocol::systemone::{Answer, DecisionRequest};
/// # use laneway_session::Slot;
/// # use laneway_text::Tokenizer;
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/fixtures/diffusion_chat_tiny");
/// # let file = std::fs::read_to_string(format!("{folder}/tokenizer.json"))?;
/// let tokenizer = Tokenizer::from_tokenizer_json(&file, None)?;
/// let reader = Reader::new(Arc::new(tokenizer), None, Readout::Autoregressive, ReaderOptions::default())?;
/// let request = DecisionRequest::from_json(
///     br#"{"state": "Where is my parcel?", "questions": {"angry": {"type": "noul", "instructions": "Is it rude?"}}}"#,
/// )?;
///
/// async fn read(part: ReadPart) -> Result<Vec<Vec<Vec<f32>>>, std::io::Error> {
///     let logits = |slot: &Slot| (0..slot.labels.len()).map(|label| if label == 0 { 2.0 } else { 0.0 }).collect();
///     Ok(part.branches.iter().map(|branch| branch.slots.iter().map(logits).collect()).collect())
/// }
/// # let future = pin!(decide(&reader, &request, 4096, read));
/// # let Poll::Ready(decided) = future.poll(&mut Context::from_waker(Waker::noop())) else { unreachable!() };
/// # /*
/// let decided = decide(&reader, &request, 4096, read).await;
/// # */
/// let answers = decided?;
/// let Some((id, Answer::Noul(noul))) = answers.iter().next() else { unreachable!() };
/// assert_eq!(id, "angry");
/// assert!(noul.yes() > 0.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub async fn decide<R, F, E>(
    reader: &Reader,
    request: &DecisionRequest,
    context_length: usize,
    mut read: R,
) -> Result<Answers, DecideError<E>>
where
    R: FnMut(ReadPart) -> F,
    F: Future<Output = Result<PartLogits, E>>,
{
    let plan = reader.plan(request, context_length)?;
    let mut logits = Vec::new();
    let mut wanted = plan.parts().to_vec();
    while !wanted.is_empty() {
        let running: Vec<F> = wanted.into_iter().map(&mut read).collect();
        for read in running {
            logits.push(read.await.map_err(DecideError::Read)?);
        }
        let is_first = logits.len() == plan.parts().len();
        wanted = plan.more(&logits).filter(|_| is_first).unwrap_or_default();
    }
    let readings = plan.readings(&logits)?;
    Answers::new(request, readings).ok_or(DecideError::Logits(ReadError::Mismatch))
}
