//! The control plane thread: HTTP API and metrics on one single-threaded runtime.

use crate::reload::Reloader;
use management::{
    CertificateExpiry, Config, HttpMemory, ListenerTls, LogLevels, MeasureResources, MetricsReader,
    Node, ReloadSettings, Router, SetDiskLimit, SetWatermark, SettingKey,
};
use node::config::{is_live, keys};
use node::logging::LogLevelControl;
use node::{ControlParts, MetricExport};
use std::future::pending;
use std::net::TcpListener;
use std::sync::Arc;

fn log_levels(levels: Arc<LogLevelControl>) -> LogLevels {
    let shown = levels.clone();
    LogLevels {
        set: Arc::new(move |category, level| levels.set(category, level)),
        shown: Arc::new(move || shown.shown()),
    }
}

fn setting_keys() -> Arc<[SettingKey]> {
    let describe = |key: &'static node::config::ConfigKey| SettingKey {
        key: key.name,
        default: key.default,
        live: is_live(key.name),
    };
    keys().map(describe).collect()
}

/// Serves until the process ends. Readiness reports that the node is stopping.
pub(crate) fn serve(parts: ControlParts, reloader: Arc<Reloader>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .thread_name("control-blocking")
        .build()
        .map_err(|e| e.to_string())?;
    let mut config = Config::new(parts.node, parts.node_name);
    config.cluster_name = parts.cluster_name;
    config.version = parts.version;
    config.listeners = parts.listeners;
    config.bound_ports = parts.bound_ports;
    config.initial_nodes = parts.initial_nodes;
    config.loopback_users = parts.loopback_users;
    config.backends = parts.backends;
    config.identities = parts.identities;
    config.memory_watermark = Some(SetWatermark(parts.set_memory_watermark));
    config.disk_free_limit = Some(SetDiskLimit(parts.set_disk_free_limit));
    config.default_queue_type = parts.default_queue_type;
    config.permitted = parts.permitted;
    config.log_levels = Some(log_levels(reloader.levels.clone()));
    config.live = reloader.shown.clone();
    config.keys = setting_keys();
    config.reload = Some(ReloadSettings(Arc::new(move || reloader.reload())));
    config.certificates_expire = Some(CertificateExpiry(parts.certificates_expire));
    config.resources = Some(MeasureResources(parts.resources));
    config.audit = parts.audit;
    config.timings = parts.timings;
    config.export_counters = parts.export_counters;
    config.traces = parts.traces;
    config.max_message_size = parts.max_message_size;
    config.memory = HttpMemory::of_limit(parts.memory_limit);
    if let Some(listener) = parts.probes {
        start_probes(listener, parts.control.clone(), config.clone())?;
    }
    let node: Node = parts.control;
    if let Some(export) = parts.metric_export {
        let reader = MetricsReader::new(node.clone(), config.clone());
        runtime.spawn(export_metrics(reader.map_err(|e| e.to_string())?, export));
    }
    runtime.block_on(async move {
        // Both listeners share one application, so that failed logins are counted together, and one
        // gate, so that connections are.
        let app = management::router(node.clone(), config.clone()).map_err(|e| e.to_string())?;
        let metrics_app =
            management::prometheus(node, config.clone()).map_err(|e| e.to_string())?;
        let (api_gate, metrics_gate) = (config.api_gate(), config.metrics_gate());
        let operator_gate = config.operator_gate();
        let plain = |listener: Option<TcpListener>| listener.map(|l| (l, None));
        let secure = |listener: Option<(TcpListener, Arc<_>)>| {
            listener.map(|(l, tls)| (l, Some(ListenerTls::from(tls))))
        };
        let operator = parts.operator.map(|(listener, server, name)| {
            let operator = Some(name);
            (listener, Some(ListenerTls { server, operator }))
        });
        let listen = async |listener_name, listener, app: &Router, gate| {
            let Some(listener) = listener else {
                return pending().await;
            };
            let serving = management::serve(listener, app.clone(), (&config, gate), pending());
            serving.await.map_err(|e| format!("{listener_name}: {e}"))
        };
        let result: Result<((), (), (), (), ()), String> = tokio::try_join!(
            listen("management", plain(parts.management), &app, &api_gate),
            listen(
                "management with TLS",
                secure(parts.management_tls),
                &app,
                &api_gate
            ),
            listen("operator with TLS", operator, &app, &operator_gate),
            listen(
                "prometheus",
                plain(parts.prometheus),
                &metrics_app,
                &metrics_gate
            ),
            listen(
                "prometheus with TLS",
                secure(parts.prometheus_tls),
                &metrics_app,
                &metrics_gate
            ),
        );
        result.map(|_| ())
    })
}

/// Exports the metrics until the process ends.
async fn export_metrics(reader: MetricsReader, export: MetricExport) {
    let first = tokio::time::Instant::now() + export.interval;
    let mut ticks = tokio::time::interval_at(first, export.interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Some(metrics) = reader.read().await {
            export.sink.send(metrics);
        }
    }
}

/// Probes have their own thread, so that they are answered however busy the HTTP API is.
fn start_probes(listener: TcpListener, node: Node, config: Config) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| e.to_string())?;
    let app = management::probes(node, config).map_err(|e| e.to_string())?;
    let serve = move || {
        let serving = management::serve_probes(listener, app, pending());
        if let Err(error) = runtime.block_on(serving) {
            tracing::error!(event = "probes_ended", %error);
        }
    };
    let thread = std::thread::Builder::new().name("probes".to_owned());
    thread.spawn(serve).map_err(|e| format!("probes: {e}"))?;
    Ok(())
}
