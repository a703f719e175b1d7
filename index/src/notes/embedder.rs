//! What makes vectors of texts.

use std::error::Error;

/// Computes a vector of a text, so that texts of similar meaning have a large dot product.
///
/// The vectors of an embedder are comparable with each other only. They should have length 1.
pub trait Embedder: Send + Sync {
    /// A number that differs between embedders whose vectors differ: of the model, its pooling, its prompt.
    fn identity(&self) -> u64;

    /// The length of the vectors, at most [`DIMENSIONS_MAX`].
    fn dimensions(&self) -> usize;

    /// The vectors of passages, in their order: each a text below its title.
    ///
    /// # Errors
    /// The texts have no vectors. The index keeps the vectors of earlier calls.
    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, Box<dyn Error + Send + Sync>>;

    /// The vector of a request. By default that of a passage; models with an instruction for requests differ.
    ///
    /// # Errors
    /// The request has no vector.
    fn embed_query(&self, text: &str) -> Result<Vec<f32>, Box<dyn Error + Send + Sync>> {
        self.embed(&[text])?.pop().ok_or_else(|| "no vector was returned".into())
    }

    /// The least dot product of a request's vector with that of a passage that is about the request; `None` (the default) if that is not
    /// known.
    fn similarity_min(&self) -> Option<f32> {
        None
    }
}

/// Maximum length of a vector.
pub const DIMENSIONS_MAX: usize = 16_384;
