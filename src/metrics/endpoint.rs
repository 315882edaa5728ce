use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;

use super::GateMetrics;

/// Where the numbers are.
const PATH: &str = "/metrics";

/// What OpenMetrics calls its text format.
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Readers at once; the next waits.
const MOST_READERS: usize = 8;

/// How long one reader may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pause after a connection that couldn't be taken, for want of descriptors.
const PAUSE: Duration = Duration::from_millis(200);

/// What writes numbers, in the text format of OpenMetrics.
pub type MetricsText = dyn Fn() -> Result<String, std::fmt::Error> + Send + Sync;

/// Serves a program's numbers by HTTP, on a thread of its own that ends with the process.
#[derive(Debug)]
pub struct MetricsEndpoint {
    listener: TcpListener,
    runtime: tokio::runtime::Runtime,
}

/// Why numbers can't be served.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// Nothing can listen there.
    #[error("cannot listen at {address} for readers of metrics")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// There is no thread for it.
    #[error("cannot start a thread for metrics")]
    Thread(#[source] std::io::Error),
}

impl MetricsEndpoint {
    /// Reads an address as it stands on a command line.
    ///
    /// # Errors
    /// What is to be written instead.
    pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
        text.parse().map_err(|_| {
            "write ADDRESS:PORT with an address in numbers, such as 127.0.0.1:9464, and no http:// or path"
                .to_owned()
        })
    }

    /// Listens.
    ///
    /// # Errors
    /// An address that is in use or not this host's, and a lack of resources.
    pub fn bind(address: SocketAddr) -> Result<Self, MetricsError> {
        let listen = |source| MetricsError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(MetricsError::Thread)?;
        Ok(Self { listener, runtime })
    }

    /// Where it listens.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Begins to serve.
    ///
    /// # Errors
    /// Where there is no thread to be had.
    pub fn serve(self, metrics: Arc<GateMetrics>) -> Result<(), MetricsError> {
        self.serve_text(Arc::new(move || metrics.text()))
    }

    /// Begins to serve what is written anew for each reader.
    ///
    /// # Errors
    /// As those of [`serve`](Self::serve).
    pub fn serve_text(self, metrics: Arc<MetricsText>) -> Result<(), MetricsError> {
        std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || {
                let Self { listener, runtime } = self;
                if let Err(error) = runtime.block_on(accept(listener, metrics)) {
                    tracing::error!(%error, "metrics can't be served");
                }
            })
            .map_err(MetricsError::Thread)?;
        Ok(())
    }
}

async fn accept(listener: TcpListener, metrics: Arc<MetricsText>) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let readers = Arc::new(Semaphore::new(MOST_READERS));
    loop {
        let Ok(turn) = Arc::clone(&readers).acquire_owned().await else {
            return Ok(());
        };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let metrics = Arc::clone(&metrics);
        tokio::spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .keep_alive(false)
                .serve_connection(
                    TokioIo::new(stream),
                    service_fn(|request| {
                        std::future::ready(Ok::<_, Infallible>(answer(&request, &*metrics)))
                    }),
                );
            // A reader that breaks off or is slow is its own affair.
            let _ = tokio::time::timeout(PATIENCE, connection).await;
            drop(turn);
        });
    }
}

fn answer(request: &Request<Incoming>, metrics: &MetricsText) -> Response<Full<Bytes>> {
    let plain = |status, text: &'static str| {
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = status;
        response
    };
    if request.uri().path() != PATH {
        return plain(StatusCode::NOT_FOUND, "the metrics are at /metrics\n");
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "they can only be read\n");
        response
            .headers_mut()
            .insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match metrics() {
        Ok(text) => {
            let mut response = Response::new(Full::from(text));
            response.headers_mut().insert(
                CONTENT_TYPE,
                hyper::header::HeaderValue::from_static(FORMAT),
            );
            response
        }
        Err(_) => plain(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the metrics can't be written\n",
        ),
    }
}
