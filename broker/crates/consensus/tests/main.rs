//! The integration tests of this crate, as one program: linking each file by itself takes longer than the tests.
#![forbid(unsafe_code)]

mod cluster;
mod damage;
mod harness;
mod hostile;
mod majority;
mod members;
mod quiet;
mod shortage;
mod storage;
