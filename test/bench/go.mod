module posthorn.io/posthorn/test/bench

go 1.26.0
