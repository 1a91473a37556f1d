//! The thread of the control plane: HTTP API and metrics on one small runtime.

use management::{Config, Expiry, LogLevels, Measure, Node, SetDiskLimit, SetWatermark};
use node::ControlParts;
use node::logging::Levels;
use std::future::pending;
use std::sync::Arc;

fn log_levels(levels: Arc<Levels>) -> LogLevels {
    let shown = levels.clone();
    LogLevels {
        set: Arc::new(move |category, level| levels.set(category, level)),
        shown: Arc::new(move || shown.shown()),
    }
}

/// Serves until the process ends; while the node stops, readiness says so.
pub fn serve(parts: ControlParts, levels: Arc<Levels>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .thread_name("control-blocking")
        .build()
        .map_err(|e| e.to_string())?;
    let mut config = Config::new(parts.node, parts.node_name);
    config.cluster_name = parts.cluster_name;
    config.program = parts.program;
    config.listeners = parts.listeners;
    config.loopback_users = parts.loopback_users;
    config.memory_watermark = Some(SetWatermark(parts.set_memory_watermark));
    config.disk_free_limit = Some(SetDiskLimit(parts.set_disk_free_limit));
    config.default_queue_type = parts.default_queue_type;
    config.consumer_timeout_ms = parts.consumer_timeout_ms;
    config.log_levels = Some(log_levels(levels));
    config.certificates_expire = Some(Expiry(parts.certificates_expire));
    config.resources = Some(Measure(parts.resources));
    let node: Node = parts.control;
    runtime.block_on(async move {
        // One application on both, so that wrong passwords are counted together.
        let app = management::router(node.clone(), config.clone()).map_err(|e| e.to_string())?;
        let api = async {
            match parts.management {
                None => pending().await,
                Some(listener) => {
                    let served = management::serve(listener, app.clone(), &config, pending());
                    served.await.map_err(|e| format!("management: {e}"))
                }
            }
        };
        let secure = async {
            match parts.management_tls {
                None => pending().await,
                Some((listener, tls)) => {
                    let app = app.clone();
                    let served = management::serve_tls(listener, tls, app, &config, pending());
                    served
                        .await
                        .map_err(|e| format!("management with TLS: {e}"))
                }
            }
        };
        let metrics = async {
            match parts.prometheus {
                None => pending().await,
                Some(listener) => {
                    let app = management::prometheus(node.clone(), config.clone())
                        .map_err(|e| e.to_string())?;
                    let served = management::serve(listener, app, &config, pending());
                    served.await.map_err(|e| format!("prometheus: {e}"))
                }
            }
        };
        let secure_metrics = async {
            match parts.prometheus_tls {
                None => pending().await,
                Some((listener, tls)) => {
                    let app = management::prometheus(node.clone(), config.clone())
                        .map_err(|e| e.to_string())?;
                    let served = management::serve_tls(listener, tls, app, &config, pending());
                    served
                        .await
                        .map_err(|e| format!("prometheus with TLS: {e}"))
                }
            }
        };
        let ended: Result<((), (), (), ()), String> =
            tokio::try_join!(api, secure, metrics, secure_metrics);
        ended.map(|_| ())
    })
}
