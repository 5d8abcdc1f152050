//! What the program that has the store does with a connection: it answers.
//!
//! Calls of one connection are answered side by side, each when it is ready, so that one that waits
//! (for events, say) holds up nobody. What a connection may cost is bounded: so many calls and so
//! many bytes of them at once, and so many answers that wait to be sent. Beyond that nothing more
//! is read from it, which is felt at its other end and nowhere else.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;
use windlass_core::refusal::Refusal;

use super::frame::{CALL_BYTES, Frames, InvalidFrame, decode, encode};
use super::hello::{Hello, ProtocolMismatch};
use super::{Call, Fault, Reply, Request, Response, Service};

/// How many calls of one connection are answered at once.
const CALLS: usize = 1_024;

/// How many answers wait to be sent before calls wait for them.
const ANSWERS: usize = 64;

/// Calls are counted in pieces of so many bytes.
const PIECE: usize = 1 << 10;

/// How long the other side may take to say hello, or to take anything that is sent to it.
const PATIENCE: Duration = Duration::from_secs(30);

/// How much is read at once.
const READ_BYTES: usize = 64 << 10;

/// Why a connection came to an end that was not the other side's wish.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// It broke.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// What came is no message.
    #[error(transparent)]
    Invalid(#[from] InvalidFrame),
    /// The other program is too old or too new.
    #[error(transparent)]
    Mismatch(#[from] ProtocolMismatch),
    /// This program was stopped for so long that what has arrived is overdue.
    #[error("this program was stopped for a while; whoever asked meanwhile has given up")]
    Overdue,
    /// It said nothing, or takes nothing.
    #[error("the other program did not {what} for {PATIENCE:?}")]
    Silent {
        /// What it did not do.
        what: &'static str,
    },
}

/// Answers the calls that come over a connection, until the other side ends it, or the service
/// closes: then what was asked is answered, and the other side told up to where that is.
///
/// What was asked and not answered when the connection ends is carried through: whoever asked finds
/// out by asking again.
pub async fn serve(
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
    service: Arc<impl Service>,
) -> Result<(), ConnectionError> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut frames = Frames::up_to(CALL_BYTES);
    send_hello(&mut writer).await?;
    receive_hello(&mut reader, &mut frames).await?;
    let (answers, unsent) = mpsc::channel(ANSWERS);
    // Whoever ends one direction has ended both: no more is asked, or nobody takes the answers.
    let writing = write_all(writer, unsent);
    tokio::pin!(writing);
    tokio::select! {
        read = read_calls(reader, frames, service, answers) => read?,
        written = &mut writing => return written,
    }
    // What was answered is sent before the connection ends.
    writing.await
}

/// Says hello first, whoever listens.
pub(super) async fn send_hello(
    writer: &mut (impl AsyncWrite + Unpin),
) -> Result<(), ConnectionError> {
    let mut hello = Vec::new();
    encode(&Hello::ours(), &mut hello)?;
    writer.write_all(&hello).await?;
    Ok(writer.flush().await?)
}

/// Waits for the other side's hello, and whether it can be understood.
pub(super) async fn receive_hello(
    reader: &mut (impl AsyncRead + Unpin),
    frames: &mut Frames,
) -> Result<(), ConnectionError> {
    let hello = async {
        loop {
            if let Some(hello) = frames.take()? {
                return Ok::<Hello, ConnectionError>(decode(hello)?);
            }
            if !receive(reader, frames).await? {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    };
    let hello = timeout(PATIENCE, hello).await;
    hello.map_err(|_| ConnectionError::Silent { what: "say hello" })??.agree()?;
    Ok(())
}

/// Takes what has arrived; whether more may come.
pub(super) async fn receive(
    reader: &mut (impl AsyncRead + Unpin),
    frames: &mut Frames,
) -> io::Result<bool> {
    Ok(reader.read_buf(frames.room(READ_BYTES)).await? > 0)
}

/// Reads calls and lets each be answered on its own, until there are no more, or no more are taken.
async fn read_calls(
    mut reader: impl AsyncRead + Unpin,
    mut frames: Frames,
    service: Arc<impl Service>,
    answers: mpsc::Sender<Vec<u8>>,
) -> Result<(), ConnectionError> {
    let room = Arc::new(Semaphore::new(CALL_BYTES / PIECE + CALLS));
    let places = Arc::new(Semaphore::new(CALLS));
    // Whoever waits for something waits for nobody when this goes.
    let (_here, gone) = watch::channel(());
    let mut last = 0;
    loop {
        while let Some(message) = frames.take()? {
            if !service.is_awake() {
                return Err(ConnectionError::Overdue);
            }
            let pieces = u32::try_from(message.len() / PIECE + 1).unwrap_or(u32::MAX);
            let call = ReceivedCall::of(message)?;
            last += 1;
            let held = (
                places.clone().acquire_owned().await,
                room.clone().acquire_many_owned(pieces).await,
            );
            let (service, answers, gone) = (service.clone(), answers.clone(), gone.clone());
            // Of nobody but itself: it is carried through however the connection ends.
            tokio::spawn(async move {
                if let Some(answer) = call.answer(&*service, gone).await {
                    // If nobody takes it any more, the connection has ended.
                    let _ = answers.send(answer).await;
                }
                drop(held);
            });
        }
        tokio::select! {
            biased;
            received = receive(&mut reader, &mut frames) => {
                if !received? {
                    return Ok(());
                }
            }
            () = service.closing() => break,
        }
    }
    // Everyone who was heard is answered, and then told that nobody else was.
    let _all = places.acquire_many(CALLS as u32).await;
    let goodbye = Response {
        number: 0,
        last_event: service.last_event(),
        answer: Ok(Reply::Goodbye { last }),
    };
    let _ = answers.send(encoded(goodbye)).await;
    Ok(())
}

/// A message that asks for something: its number, and the call if it is understood here.
struct ReceivedCall {
    number: u64,
    call: Option<Call>,
}

impl ReceivedCall {
    fn of(message: &[u8]) -> Result<Self, InvalidFrame> {
        /// All that is needed to answer.
        #[derive(serde::Deserialize)]
        struct Numbered {
            number: u64,
        }
        match decode(message) {
            Ok(Request { number, call }) => Ok(Self { number, call: Some(call) }),
            Err(error) => {
                let Numbered { number } = decode(message).map_err(|_: InvalidFrame| error)?;
                Ok(Self { number, call: None })
            }
        }
    }

    /// The answer; none if nobody is to be told any more.
    async fn answer(
        self,
        service: &impl Service,
        mut gone: watch::Receiver<()>,
    ) -> Option<Vec<u8>> {
        let number = self.number;
        let answer = match self.call {
            Some(call) if call.waits() => tokio::select! {
                biased;
                answer = service.answer(call) => answer,
                () = service.closing() => return None,
                _ = gone.changed() => return None,
            },
            Some(call) => service.answer(call).await,
            None => {
                let why = "this program does not understand the call; it may be older".to_string();
                Err(Fault::Refused(Refusal::Unavailable { why }))
            }
        };
        Some(encoded(Response { number, last_event: service.last_event(), answer }))
    }
}

/// An answer as bytes.
pub(super) fn encoded(response: Response) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Err(error) = encode(&response, &mut bytes) {
        let answer = Err(Fault::Unknown { why: format!("the answer is {error}") });
        // A few words always fit.
        let _ = encode(&Response { answer, ..response }, &mut bytes);
    }
    bytes
}

/// Sends what is to be sent, as much of it at once as is there.
pub(super) async fn write_all(
    mut writer: impl AsyncWrite + Unpin,
    mut unsent: mpsc::Receiver<Vec<u8>>,
) -> Result<(), ConnectionError> {
    while let Some(mut bytes) = unsent.recv().await {
        while bytes.len() < READ_BYTES
            && let Ok(more) = unsent.try_recv()
        {
            bytes.extend_from_slice(&more);
        }
        let mut left = &bytes[..];
        while !left.is_empty() {
            let written = timeout(PATIENCE, writer.write(left)).await;
            let written =
                written.map_err(|_| ConnectionError::Silent { what: "take what was sent" })??;
            if written == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero).into());
            }
            left = &left[written..];
        }
        writer.flush().await?;
    }
    Ok(())
}
