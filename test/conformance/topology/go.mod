module posthorn.io/posthorn/test/conformance/topology

go 1.26.0

require github.com/michaelklishin/rabbit-hole/v3 v3.5.0
