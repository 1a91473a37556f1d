//! Reading of PEM files, and detection of changed files.

use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Maximum size of a PEM file in bytes. A bundle of all public authorities has about 250 kB.
const MAX_FILE: u64 = 4 << 20;

/// A file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {what}")]
pub struct FileError {
    /// Path of the file.
    pub file: String,
    /// The cause, for an error message.
    pub what: String,
}

impl FileError {
    /// Creates an error from a path and a cause.
    pub fn new(file: &Path, what: impl ToString) -> FileError {
        FileError {
            file: file.display().to_string(),
            what: what.to_string(),
        }
    }
}

fn read(file: &Path) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    let opened = fs::File::open(file);
    opened
        .and_then(|f| f.take(MAX_FILE + 1).read_to_end(&mut bytes))
        .map_err(|e| FileError::new(file, e))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(FileError::new(
            file,
            format_args!("larger than {MAX_FILE} bytes"),
        ));
    }
    Ok(bytes)
}

/// All certificates of a file, in file order; at least one.
pub fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let bytes = read(file)?;
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let all = parsed.map_err(|e| FileError::new(file, e))?;
    if all.is_empty() {
        return Err(FileError::new(file, "contains no certificate"));
    }
    Ok(all)
}

/// The first private key of a file: PKCS#8, PKCS#1 or SEC 1, not encrypted.
pub fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    let bytes = read(file)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| {
        let text = String::from_utf8_lossy(&bytes);
        // Matches "ENCRYPTED PRIVATE KEY" of PKCS#8 and "Proc-Type: 4,ENCRYPTED" of the older
        // format.
        if text.contains("ENCRYPTED") {
            let hint = "the private key is encrypted, which is not supported; decrypt it with `openssl pkey`";
            return FileError::new(file, hint);
        }
        FileError::new(file, error)
    })
}

/// The certificate authorities of a file.
pub fn roots(file: &Path) -> Result<RootCertStore, FileError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots
            .add(certificate)
            .map_err(|e| FileError::new(file, e))?;
    }
    Ok(roots)
}

/// Metadata of a set of files. Equal stamps mean that the files are unchanged. Symbolic links are
/// followed, so the swap of a directory link, as Kubernetes does it, is detected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileStamp(Vec<Option<FileMetadata>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct FileMetadata {
    device: u64,
    inode: u64,
    size: u64,
    /// Change time of the inode in seconds and nanoseconds. It includes changes of the mode, which
    /// may make a file readable.
    changed: (i64, i64),
}

impl FileStamp {
    /// Reads the metadata of these files, in order. A file that cannot be read counts as absent.
    pub fn of<'a>(files: impl IntoIterator<Item = &'a Path>) -> FileStamp {
        let stat = |file: &Path| -> io::Result<FileMetadata> {
            let metadata = fs::metadata(file)?;
            Ok(FileMetadata {
                device: metadata.dev(),
                inode: metadata.ino(),
                size: metadata.size(),
                changed: (metadata.ctime(), metadata.ctime_nsec()),
            })
        };
        FileStamp(files.into_iter().map(|file| stat(file).ok()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use authority::Dir;

    type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

    #[test]
    fn stamp_detects_writes_renames_and_swapped_links() -> Result<()> {
        let dir = Dir::new("stamp")?;
        let (file, other) = (dir.path("file"), dir.path("other"));
        fs::write(&file, "one")?;
        let stamp = || FileStamp::of([file.as_path()]);
        let first = stamp();
        assert_eq!(first, stamp());
        fs::write(&other, "one")?;
        fs::rename(&other, &file)?;
        let second = stamp();
        assert_ne!(first, second, "another file of the same size");
        fs::write(&file, "four")?;
        assert_ne!(second, stamp());
        fs::remove_file(&file)?;
        assert_ne!(first, stamp());

        // As the kubelet does it: `..data` links to a directory and is replaced by a rename.
        for version in ["v1", "v2"] {
            fs::create_dir(dir.path(version))?;
            fs::write(dir.path(version).join("tls.crt"), "same")?;
        }
        std::os::unix::fs::symlink("v1", dir.path("..data"))?;
        std::os::unix::fs::symlink("..data/tls.crt", dir.path("tls.crt"))?;
        let link = dir.path("tls.crt");
        let before = FileStamp::of([link.as_path()]);
        std::os::unix::fs::symlink("v2", dir.path("..data_tmp"))?;
        fs::rename(dir.path("..data_tmp"), dir.path("..data"))?;
        assert_ne!(before, FileStamp::of([link.as_path()]));
        Ok(())
    }

    #[test]
    fn errors_name_the_file() -> Result<()> {
        let dir = Dir::new("files")?;
        let file = dir.path("file.pem");
        let missing = certificates(&file).err().ok_or("missing")?;
        assert!(missing.to_string().contains("file.pem: No such file"));
        fs::write(&file, "not a certificate")?;
        let empty = certificates(&file).err().ok_or("empty")?;
        assert_eq!(empty.what, "contains no certificate");
        assert!(private_key(&file).is_err());
        for header in [
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n",
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIB\n-----END RSA PRIVATE KEY-----\n",
        ] {
            fs::write(&file, header)?;
            let encrypted = private_key(&file).err().ok_or("encrypted")?;
            assert!(encrypted.what.contains("is encrypted"), "{encrypted}");
        }
        Ok(())
    }
}
