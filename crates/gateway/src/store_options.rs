//! How this gateway reaches any store: by its settings; what those leave out, by the environment.

use crate::config::GatewayConfig;
use holdfast_store::{BoxFuture, Health, ObjectStore, RetryPolicy, StoreError, StoreOptions};
use std::sync::Arc;

/// The options that the settings give.
pub fn store_options(config: &GatewayConfig) -> StoreOptions {
    let (read_timeout_ms, write_timeout_ms) = (config.store.read_timeout_ms, config.store.write_timeout_ms);
    let defaults = StoreOptions::default();
    StoreOptions {
        endpoint: config.store.endpoint.clone(),
        region: config.store.region.clone(),
        path_style: config.store.path_style.then_some(true),
        credentials_file: config.store.credentials_file.clone(),
        connect_timeout_ms: defaults.connect_timeout_ms.min(read_timeout_ms),
        retry: RetryPolicy { read_timeout_ms, write_timeout_ms, ..defaults.retry.clone() },
        ..defaults
    }
}

/// Opens the store at `url` with this gateway's settings, off the runtime's threads. `health` is told of every attempt.
pub fn open_store(
    config: &GatewayConfig,
    url: &str,
    health: Arc<Health>,
) -> BoxFuture<'static, Result<Arc<dyn ObjectStore>, StoreError>> {
    let options = store_options(config).filled_from(|name| std::env::var(name).ok());
    let url = url.to_owned();
    Box::pin(async move {
        let open = move |url: &str| holdfast_store::open_observed(url, &options, health);
        holdfast_store::open_aside(&url, open).await
    })
}
