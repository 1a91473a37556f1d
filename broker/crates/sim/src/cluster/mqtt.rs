//! Clients that speak MQTT 5.0 to the nodes, and the rules that what they see must keep (docs/internals/simulation.md).

mod book;
mod crowd;
mod device;
mod dying;
mod guest;
mod inbound;
mod outbound;
mod post;
mod retained;
mod routes;
mod wire;

pub use book::{Book, Knows};
pub use crowd::{Crowd, FIRST};
pub use post::PostId;
pub use routes::{Place, knows};
pub use wire::Arrival;
