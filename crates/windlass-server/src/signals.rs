//! Ctrl-C, and the signal by which a service manager says the same.

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Requests to stop. From the moment this exists, they no longer end the process by themselves.
pub(crate) struct Interrupts {
    #[cfg(unix)]
    interrupt: Signal,
    #[cfg(unix)]
    terminate: Signal,
}

impl Interrupts {
    /// Listens from now on. Must be called within a tokio runtime.
    #[cfg(unix)]
    pub(crate) fn listen() -> std::io::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        let terminate = signal(SignalKind::terminate())?;
        Ok(Self { interrupt, terminate })
    }

    /// Waits for the next request to stop.
    #[cfg(unix)]
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Listens from now on. Must be called within a tokio runtime.
    #[cfg(not(unix))]
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(Self {})
    }

    /// Waits for the next request to stop.
    #[cfg(not(unix))]
    pub(crate) async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            // Nobody can ask; then nobody does.
            std::future::pending::<()>().await;
        }
    }
}
