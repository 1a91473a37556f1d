//! Nothing: the manifest pins the client whose own tests are run.
