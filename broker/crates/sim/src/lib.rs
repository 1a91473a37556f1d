//! Whole clusters on one thread under one seed, with oracles
