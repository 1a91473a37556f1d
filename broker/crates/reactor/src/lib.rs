//! Event loop of a shard: mio, connection slab, timing wheel, rings between threads
