//! PEM files: reading them, and telling whether they have changed.

use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Largest PEM file, in bytes. Bundles of all public authorities have some 250 kB.
const MAX_FILE: u64 = 4 << 20;

/// Why a file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {what}")]
pub struct FileError {
    /// Path of the file.
    pub file: String,
    /// The cause, for people.
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

/// All certificates of a file, in its order; at least one.
pub fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let bytes = read(file)?;
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let all = parsed.map_err(|e| FileError::new(file, e))?;
    if all.is_empty() {
        return Err(FileError::new(file, "no certificate in it"));
    }
    Ok(all)
}

/// The first private key of a file: PKCS#8, PKCS#1 or SEC 1, not encrypted.
pub fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    let bytes = read(file)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| {
        let text = String::from_utf8_lossy(&bytes);
        // "ENCRYPTED PRIVATE KEY" of PKCS#8, and "Proc-Type: 4,ENCRYPTED" of the older form.
        if text.contains("ENCRYPTED") {
            let hint = "the private key is encrypted, which is not supported; `openssl pkey` writes it without";
            return FileError::new(file, hint);
        }
        FileError::new(file, error)
    })
}

/// The authorities of a file.
pub fn roots(file: &Path) -> Result<RootCertStore, FileError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots
            .add(certificate)
            .map_err(|e| FileError::new(file, e))?;
    }
    Ok(roots)
}

/// What a look at some files saw. Two looks with equal stamps saw the same files, also where directories are swapped by
/// a symbolic link as Kubernetes does it: links are followed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp(Vec<Option<Seen>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    device: u64,
    inode: u64,
    size: u64,
    /// Of the content or of the inode; seconds and nanoseconds. A new mode counts: it may be what makes a file readable.
    changed: (i64, i64),
}

impl Stamp {
    /// Reads the metadata of these files, in their order. A file that cannot be read counts as absent.
    pub fn of<'a>(files: impl IntoIterator<Item = &'a Path>) -> Stamp {
        let look = |file: &Path| -> io::Result<Seen> {
            let found = fs::metadata(file)?;
            Ok(Seen {
                device: found.dev(),
                inode: found.ino(),
                size: found.size(),
                changed: (found.ctime(), found.ctime_nsec()),
            })
        };
        Stamp(files.into_iter().map(|file| look(file).ok()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use authority::Dir;

    type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

    #[test]
    fn a_stamp_tells_a_change_in_place_a_rename_and_a_swapped_link() -> Result<()> {
        let dir = Dir::new("stamp")?;
        let (file, other) = (dir.path("file"), dir.path("other"));
        fs::write(&file, "one")?;
        let stamp = || Stamp::of([file.as_path()]);
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

        // As the kubelet does it: ..data points to a directory and is replaced by a rename.
        for version in ["v1", "v2"] {
            fs::create_dir(dir.path(version))?;
            fs::write(dir.path(version).join("tls.crt"), "same")?;
        }
        std::os::unix::fs::symlink("v1", dir.path("..data"))?;
        std::os::unix::fs::symlink("..data/tls.crt", dir.path("tls.crt"))?;
        let link = dir.path("tls.crt");
        let before = Stamp::of([link.as_path()]);
        std::os::unix::fs::symlink("v2", dir.path("..data_tmp"))?;
        fs::rename(dir.path("..data_tmp"), dir.path("..data"))?;
        assert_ne!(before, Stamp::of([link.as_path()]));
        Ok(())
    }

    #[test]
    fn what_is_no_certificate_or_key_is_told_with_its_file() -> Result<()> {
        let dir = Dir::new("files")?;
        let file = dir.path("file.pem");
        let missing = certificates(&file).err().ok_or("missing")?;
        assert!(missing.to_string().contains("file.pem: No such file"));
        fs::write(&file, "not a certificate")?;
        let empty = certificates(&file).err().ok_or("empty")?;
        assert_eq!(empty.what, "no certificate in it");
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
