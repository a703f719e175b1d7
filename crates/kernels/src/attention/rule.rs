//! What distinguishes the attention of one layer from that of another of the same shape.

/// The rule of an attention layer: how a dot product becomes a score, which positions count, and what else takes part in the
/// softmax.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AttentionRule<'a> {
    /// Factor of the dot products of queries and keys.
    pub scale: f32,
    /// Positions that a row sees: the last `window` up to its own, its own included; at least 1. `None`: all.
    pub window: Option<usize>,
    /// A bound of the scores: `score' = softcap · tanh(score / softcap)`; positive.
    pub softcap: Option<f32>,
    /// A logit for each query head, `[n_heads]`. It takes part in the softmax and has no value.
    pub sinks: Option<&'a [f32]>,
}

impl AttentionRule<'static> {
    /// Attention as Vaswani et al. (2017, eq. 1) define it: scale `1/√head_dim`, all positions, nothing else.
    pub fn plain(head_dim: usize) -> Self {
        AttentionRule { scale: 1.0 / (head_dim as f32).sqrt(), window: None, softcap: None, sinks: None }
    }
}

impl AttentionRule<'_> {
    /// # Panics
    /// If a part is outside its documented range.
    pub(super) fn check(&self, n_heads: usize) {
        assert!(self.window != Some(0), "a window of no positions");
        assert!(self.softcap.is_none_or(|cap| cap > 0.0), "softcap {:?}", self.softcap);
        let n_sinks = self.sinks.map(<[f32]>::len);
        assert!(n_sinks.is_none_or(|n| n == n_heads), "{n_sinks:?} sinks for {n_heads} heads");
    }

    /// Maximum positions that a row sees.
    #[inline(always)]
    pub(super) fn window_len(&self) -> usize {
        self.window.unwrap_or(usize::MAX)
    }
}
