//! Opens and makes an envelope by AWS KMS.

use crate::error::EnvelopeError;
use crate::keeper::KmsKey;
use crate::shape::region;
use holdfast_store::StoreOptions;
use holdfast_store::service::{Kms, ServiceError, to_base64};
use zeroize::Zeroizing;

/// Bound to each envelope: KMS opens no ciphertext of another purpose under the same key.
const CONTEXT: (&str, &str) = ("holdfast", "cluster-key");

/// Advice after a refusal.
const REFUSED: &str = "expected kms:Decrypt (and kms:Encrypt to make one) for these access keys, and an envelope of this key, made with the encryption context holdfast=cluster-key";

/// Advice if there was no answer.
const UNREACHED: &str = "expected AWS KMS there: is the region of key.kms right, and can this machine reach it?";

/// Advice if nothing was sent.
const OPTIONS: &str =
    "key.kms signs as a store does: by store.credentials_file, by the AWS variables, or by a role of this machine";

/// # Errors
/// [`EnvelopeError`].
pub(crate) async fn open(key: &KmsKey, wrapped: &[u8]) -> Result<Zeroizing<Vec<u8>>, EnvelopeError> {
    let kms = connect(key).await?;
    kms.decrypt(wrapped, CONTEXT).await.map(Zeroizing::new).map_err(failed)
}

/// # Errors
/// [`EnvelopeError`].
pub(crate) async fn make(key: &KmsKey, plain: &[u8; 32]) -> Result<String, EnvelopeError> {
    let kms = connect(key).await?;
    kms.encrypt(plain, CONTEXT).await.map(|wrapped| to_base64(&wrapped) + "\n").map_err(failed)
}

async fn connect(key: &KmsKey) -> Result<Kms, EnvelopeError> {
    let options = StoreOptions { credentials_file: key.credentials_file.clone(), ..StoreOptions::default() };
    let options = options.filled_from(|name| std::env::var(name).ok());
    Kms::connect(&key.arn, region(&key.arn)?, key.endpoint.as_deref(), &options).await.map_err(failed)
}

fn failed(source: ServiceError) -> EnvelopeError {
    let next = match source {
        ServiceError::Options(_) => OPTIONS,
        ServiceError::NoAnswer { .. } => UNREACHED,
        ServiceError::Refused { .. } => REFUSED,
    };
    EnvelopeError::Service { source: Box::new(source), next }
}
