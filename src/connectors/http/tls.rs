//! Certificates and keys from PEM files, made into the configuration of a server.
//!
//! Read once, when a listener is bound: a renewed certificate is taken up by a restart.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// Where a listener finds its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// The chain, leaf first.
    pub cert: PathBuf,
    /// The private key: PKCS#8, PKCS#1 or SEC1.
    pub key: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read certificates from {}: {source}", path.display())]
    Certificates { path: PathBuf, source: pem::Error },
    #[error("no certificate in {}", .0.display())]
    NoCertificate(PathBuf),
    #[error("cannot read the private key from {}: {source}", path.display())]
    Key { path: PathBuf, source: pem::Error },
    #[error("certificate {} and key {} do not make a server: {source}", cert.display(), key.display())]
    Unusable { cert: PathBuf, key: PathBuf, source: rustls::Error },
}

/// TLS 1.2 and 1.3, HTTP/2 preferred over HTTP/1.1.
pub fn server_config(files: &Files) -> Result<Arc<ServerConfig>, Error> {
    let chain = certificates(&files.cert)?;
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|source| Error::Key { path: files.key.clone(), source })?;
    let unusable = |source| Error::Unusable { cert: files.cert.clone(), key: files.key.clone(), source };
    // The provider is named, not taken from the process: two of them linked in would make the default ambiguous.
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(unusable)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let chain: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|source| Error::Certificates { path: path.to_owned(), source })?;
    if chain.is_empty() { Err(Error::NoCertificate(path.to_owned())) } else { Ok(chain) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(folder: &Path, name: &str) -> Files {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let files = Files { cert: folder.join(format!("{name}.crt")), key: folder.join(format!("{name}.key")) };
        std::fs::write(&files.cert, made.cert.pem()).unwrap();
        std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
        files
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (pair(folder.path(), "one"), pair(folder.path(), "other"));
        assert!(server_config(&one).is_ok());
        let mixed = Files { cert: one.cert, key: other.key };
        assert!(matches!(server_config(&mixed), Err(Error::Unusable { .. })));
    }

    #[test]
    fn a_missing_file_and_a_file_without_certificate_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let good = pair(folder.path(), "good");
        let missing = Files { cert: folder.path().join("absent.crt"), key: good.key.clone() };
        assert!(server_config(&missing).unwrap_err().to_string().contains("absent.crt"));
        let swapped = Files { cert: good.key.clone(), key: good.key };
        assert!(matches!(server_config(&swapped), Err(Error::NoCertificate(_))));
    }
}
