//! The public API, `/v1`: what a team in any language enqueues with, looks at, changes and works
//! with.
//!
//! Handlers decide nothing: each reads what is asked, asks the engine, and writes what it answered.
//! There is one for each path and method.
//!
//! - [`access`] lets requests in; [`body`] and [`query`] read them, [`text`] durations and times
//! - [`problem`] is how errors look, [`openapi`] describes all of it to programs
//! - [`jobs`] and [`queues`] are the resources, [`new_job`] a job as a producer writes it
//! - [`work`] is for workers, [`lease_text`] what they prove with that they hold a job

pub mod access;
mod body;
mod jobs;
mod lease_text;
mod new_job;
mod openapi;
mod problem;
mod query;
mod queues;
mod text;
mod work;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, any, get};
use tokio::sync::{OnceCell, Semaphore, watch};
use tokio::time::timeout;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use windlass::store::Store;
use windlass::{Engine, WorkerInfo, limits};

use self::access::Access;
use self::lease_text::LeaseSecret;
use self::openapi::CommonParts;
use self::problem::{Problem, ProblemCode};
use self::work::KnownWorkers;

/// How long the store may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long it may take for a change of very many jobs, which it makes in many steps.
const LONG_PATIENCE: Duration = Duration::from_secs(300);

/// The public API of an engine, as an axum router to nest under any prefix: paths begin with `/v1`.
///
/// It lives as long as the engine. To end it before, so that requests that wait are answered at
/// once, make an [`Api`].
///
/// ```
/// # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
/// use windlass_server::Access;
///
/// let engine = windlass::Engine::open("memory:").await?;
/// let app: axum::Router = axum::Router::new()
///     .nest("/windlass", windlass_server::router(&engine, Access::Unchecked));
/// # Ok(()) }
/// ```
pub fn router(engine: &Engine, access: Access) -> Router {
    Api::new(engine, access).router()
}

/// What is behind the public API. It can be cloned: all are the same.
#[derive(Clone)]
pub struct Api {
    shared: Arc<ApiState>,
}

struct ApiState {
    engine: Engine,
    access: Access,
    /// The store for workers elsewhere: their leases end by time alone.
    remote_store: Arc<dyn Store>,
    /// What leases are signed with, once it was asked for.
    lease_secret: OnceCell<LeaseSecret>,
    workers: KnownWorkers,
    /// Room for bodies, in pieces.
    room: Arc<Semaphore>,
    closing: watch::Sender<bool>,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("access", &self.shared.access).finish_non_exhaustive()
    }
}

impl Api {
    /// The API of this engine, for those who are let in.
    pub fn new(engine: &Engine, access: Access) -> Self {
        let room = Arc::new(Semaphore::new(limits::REQUESTS_BYTES / body::PIECE));
        let store = engine.store();
        let state = ApiState {
            remote_store: store.for_remote_workers().unwrap_or_else(|| store.clone()),
            engine: engine.clone(),
            access,
            lease_secret: OnceCell::new(),
            workers: KnownWorkers::default(),
            room,
            closing: watch::Sender::new(false),
        };
        Self { shared: Arc::new(state) }
    }

    /// All that it answers.
    pub fn router(&self) -> Router {
        let others = ["/v1", "/v1/", "/v1/{*rest}"].map(|path| (path, any(no_such_path)));
        let described = self.described().0.route("/openapi.json", get(openapi::show));
        let guard = from_fn_with_state(self.clone(), access::guard);
        let add = |router: Router<Self>, (path, row): (&str, MethodRouter<Self>)| {
            router.route(path, row.layer(guard.clone()))
        };
        others.into_iter().fold(described, add).with_state(self.clone())
    }

    /// The API as OpenAPI.
    pub fn openapi(&self) -> OpenApi {
        self.described().1
    }

    /// What is answered and described.
    fn described(&self) -> (Router<Self>, OpenApi) {
        let rows = [
            routes!(jobs::enqueue, jobs::list),
            routes!(jobs::show, jobs::remove),
            routes!(jobs::explain),
            routes!(jobs::cancel),
            routes!(jobs::run_now),
            routes!(jobs::reschedule),
            routes!(jobs::replay),
            routes!(queues::list),
            routes!(queues::show),
            routes!(queues::pause),
            routes!(queues::resume),
            routes!(queues::clear),
            routes!(work::lease),
            routes!(work::heartbeat),
            routes!(work::finish),
        ];
        // Each row is guarded by itself, and nothing is a fallback of the router: a layer or a
        // fallback of that would reach the paths of the application that it is merged into.
        let guard = from_fn_with_state(self.clone(), access::guard);
        let empty = OpenApiRouter::with_openapi(CommonParts::openapi());
        let router = rows.into_iter().fold(empty, |router, (schemas, paths, row)| {
            let row: MethodRouter<Self> = row.fallback(method_not_allowed).layer(guard.clone());
            router.routes((schemas, paths, row))
        });
        router.split_for_parts()
    }

    /// Takes no more requests, and answers those that wait for something: a job as it is, and to a
    /// worker that it is to come again.
    pub fn close(&self) {
        self.shared.closing.send_replace(true);
    }

    fn is_closing(&self) -> bool {
        *self.shared.closing.borrow() || self.shared.engine.is_closing()
    }

    /// Returns when it is closed.
    async fn closed(&self) {
        // It cannot fail: the sender is here.
        let _ = self.shared.closing.subscribe().wait_for(|closing| *closing).await;
    }

    fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    fn access(&self) -> &Access {
        &self.shared.access
    }

    fn remote_store(&self) -> &dyn Store {
        &*self.shared.remote_store
    }

    async fn lease_secret(&self) -> Result<&LeaseSecret, Problem> {
        self.shared.lease_secret.get_or_try_init(|| LeaseSecret::of(self.remote_store())).await
    }

    fn known_workers(&self) -> MutexGuard<'_, HashMap<Arc<str>, WorkerInfo>> {
        self.shared.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn room(&self) -> &Arc<Semaphore> {
        &self.shared.room
    }
}

/// Asks the store, for as long as a caller can be kept waiting.
async fn ask<T, E: Into<Problem>>(asked: impl Future<Output = Result<T, E>>) -> Result<T, Problem> {
    ask_for(PATIENCE, asked).await
}

async fn ask_for<T, E: Into<Problem>>(
    patience: Duration,
    asked: impl Future<Output = Result<T, E>>,
) -> Result<T, Problem> {
    timeout(patience, asked).await.map_err(|_| Problem::unanswered())?.map_err(Into::into)
}

async fn no_such_path() -> Problem {
    Problem::new(ProblemCode::NoSuchPath, "there is no such path; docs/http.md lists all")
}

async fn method_not_allowed() -> Problem {
    let why = "this path has other methods; the header `Allow` names them";
    Problem::new(ProblemCode::MethodNotAllowed, why)
}
