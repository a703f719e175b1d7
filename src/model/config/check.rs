//! The checks of hyper-parameters: every limit, and every relation between fields.

use super::{
    Activation, Attention, BRANCH_RANK_MAX, CONTEXT_LEN_MAX, CONV_LEN_MAX, ConfigError, FFN_DIM_MAX,
    FeedForward, HEAD_DIM_MAX, HIDDEN_DIM_MAX, LayerPlan, Mixer, ModelConfig, N_EXPERTS_MAX, N_HEADS_MAX,
    N_LAYERS_MAX, PER_LAYER_DIM_MAX, PerLayerInputs, QueryGrowth, ROPES_MAX, RopeConfig, RopeScaling,
    Routing, STREAMS_MAX, Streams, VOCAB_SIZE_MAX,
};
use crate::face::internals;

impl ModelConfig {
    internals! {
        /// Checks every limit and relation; `file` is used in messages.
        ///
        /// # Errors
        /// [`ConfigError::OutOfRange`] or [`ConfigError::Inconsistent`], naming the first field that fails.
        fn validate(&self, file: &str) -> Result<(), ConfigError> {
            let check = Check { file };
            check.count("n_layers", self.layers.len(), N_LAYERS_MAX)?;
            check.count("hidden_dim", self.hidden_dim, HIDDEN_DIM_MAX)?;
            check.count("vocab_size", self.vocab_size, VOCAB_SIZE_MAX)?;
            check.count("context_len", self.context_len, CONTEXT_LEN_MAX)?;
            check.positive("norm_eps", f64::from(self.norm_eps))?;
            check.positive("embedding_scale", f64::from(self.embedding_scale))?;
            check.positive("logit_scale", f64::from(self.logit_scale))?;
            check.cap("logit_softcap", self.logit_softcap)?;
            if self.ropes.len() > ROPES_MAX {
                return Err(check.out_of_range("ropes", self.ropes.len(), format!("0 to {ROPES_MAX}")));
            }
            if let Some(PerLayerInputs { dim, vocab_size, activation }) = self.per_layer {
                check.count("per-layer dim", dim, PER_LAYER_DIM_MAX)?;
                check.count("per-layer vocab_size", vocab_size, VOCAB_SIZE_MAX)?;
                check.activation(activation)?;
                if matches!(activation, Activation::ClampedSwiglu { .. }) {
                    return Err(check.out_of_range("per-layer activation", "clamped", "silu or gelu"));
                }
            }
            if let Some(Streams { n, active, .. }) = self.streams {
                if !(2..=STREAMS_MAX).contains(&n) {
                    return Err(check.out_of_range("residual streams", n, format!("2 to {STREAMS_MAX}")));
                }
                if active >= n {
                    return Err(check.out_of_range("active stream", active, format!("below {n}")));
                }
                if self.layers.iter().any(|layer| layer.output_scaled) {
                    return Err(check.inconsistent(("residual streams", n), ("a scale of layers", "outputs")));
                }
            }
            if self.draft_head.is_some() && self.is_recurrent() {
                return Err(check.inconsistent(("draft head", "a layer"), ("layers", "recurrent")));
            }
            if let Some(eagle3) = self.eagle3() {
                check.count("target hidden_dim", eagle3.target_hidden_dim, HIDDEN_DIM_MAX)?;
                check.count("draft vocab_size", eagle3.draft_vocab_size, self.vocab_size)?;
            }
            self.layers.iter().try_for_each(|layer| self.validate_layer(&check, layer))?;
            // Behind the layers: a rotation of no dimensions follows from heads without any.
            self.ropes.iter().try_for_each(|rope| check.rope(rope))?;
            (0..self.layers.len()).try_for_each(|layer_idx| self.validate_kv_source(&check, layer_idx))
        }
    }

    /// Keys and values that a layer shares are those of an earlier layer, of its widths.
    fn validate_kv_source(&self, check: &Check<'_>, layer_idx: usize) -> Result<(), ConfigError> {
        let Some(attention) = self.attention(layer_idx) else { return Ok(()) };
        let Some(source_idx) = attention.kv_layer() else { return Ok(()) };
        let own = format!("layer {layer_idx}");
        if source_idx >= layer_idx {
            return Err(check.out_of_range(
                "kv layer",
                source_idx,
                format!("an earlier layer than {layer_idx}"),
            ));
        }
        let other = format!("layer {source_idx} without keys and values of its own");
        let source = self.attention(source_idx).filter(|source| source.kv_layer().is_none());
        let source = source.ok_or_else(|| check.inconsistent((&own, "keys and values"), ("of", &other)))?;
        let widths = |attention: &Attention| (attention.n_kv_heads, attention.head_dim);
        if widths(source) == widths(attention) {
            return Ok(());
        }
        let shown =
            |attention: &Attention| format!("{} KV heads of {}", attention.n_kv_heads, attention.head_dim);
        let source_name = format!("layer {source_idx}");
        Err(check.inconsistent((&own, shown(attention)), (&source_name, shown(source))))
    }

    fn validate_layer(&self, check: &Check<'_>, layer: &LayerPlan) -> Result<(), ConfigError> {
        check.positive("residual_scale", f64::from(layer.residual_scale))?;
        if let Some(rank) = layer.branch_rank {
            check.count("rank of the branch", rank, BRANCH_RANK_MAX)?;
            if !layer.norms.has_pre() {
                return Err(check.inconsistent(("rank of the branch", rank), ("norms", "post")));
            }
        }
        match &layer.mixer {
            Mixer::Attention(attention) => self.validate_attention(check, attention)?,
            Mixer::ShortConv(conv) => {
                check.count("conv_dim", conv.conv_dim, HIDDEN_DIM_MAX)?;
                check.count("conv_len", conv.conv_len, CONV_LEN_MAX)?;
            }
            Mixer::DeltaNet(delta) => {
                check.count("n_key_heads", delta.n_key_heads, N_HEADS_MAX)?;
                check.count("n_value_heads", delta.n_value_heads, N_HEADS_MAX)?;
                check.count("key_dim", delta.key_dim, HEAD_DIM_MAX)?;
                check.count("value_dim", delta.value_dim, HEAD_DIM_MAX)?;
                check.count("conv_len", delta.conv_len, CONV_LEN_MAX)?;
                check.multiple(("n_value_heads", delta.n_value_heads), ("n_key_heads", delta.n_key_heads))?;
            }
            Mixer::Mamba2(mamba) => {
                check.count("n_heads", mamba.n_heads, N_HEADS_MAX)?;
                check.count("head_dim", mamba.head_dim, HEAD_DIM_MAX)?;
                check.count("n_groups", mamba.n_groups, N_HEADS_MAX)?;
                check.count("state_dim", mamba.state_dim, HEAD_DIM_MAX)?;
                check.count("conv_len", mamba.conv_len, CONV_LEN_MAX)?;
                check.multiple(("n_heads", mamba.n_heads), ("n_groups", mamba.n_groups))?;
            }
        }
        match &layer.feed {
            FeedForward::None => Ok(()),
            FeedForward::Dense(dense) => {
                check.count("ffn_dim", dense.ffn_dim, FFN_DIM_MAX)?;
                if let Some(cutoff) = dense.cutoff.filter(|cutoff| !cutoff.is_finite()) {
                    return Err(check.out_of_range("activation cutoff", cutoff, "a finite number"));
                }
                check.activation(dense.activation)
            }
            FeedForward::Experts(experts) => {
                check.count("n_experts", experts.n_experts, N_EXPERTS_MAX)?;
                check.count("n_used", experts.n_used, experts.n_experts)?;
                check.count("expert ffn_dim", experts.ffn_dim, FFN_DIM_MAX)?;
                if experts.shared_ffn_dim > FFN_DIM_MAX {
                    let allowed = format!("0 to {FFN_DIM_MAX}");
                    return Err(check.out_of_range("shared ffn_dim", experts.shared_ffn_dim, allowed));
                }
                // Matrices of experts lie one behind the other in panels of 16 rows.
                for (field, value) in [("expert ffn_dim", experts.ffn_dim), ("hidden_dim", self.hidden_dim)] {
                    if !value.is_multiple_of(16) {
                        return Err(check.out_of_range(field, value, "a multiple of 16 with experts"));
                    }
                }
                if experts.own_norms {
                    check.count("shared ffn_dim", experts.shared_ffn_dim, FFN_DIM_MAX)?;
                    if !layer.norms.has_pre() || experts.shared_gated {
                        return Err(check
                            .inconsistent(("norms of experts", "own"), ("their layer", "of another kind")));
                    }
                }
                if let Routing::Sigmoid { scale, .. } = experts.routing {
                    check.positive("scale of the experts' weights", f64::from(scale))?;
                }
                check.activation(experts.activation)
            }
        }
    }

    fn validate_attention(&self, check: &Check<'_>, attention: &Attention) -> Result<(), ConfigError> {
        let Attention { n_heads, n_kv_heads, head_dim, .. } = *attention;
        check.count("n_heads", n_heads, N_HEADS_MAX)?;
        check.count("n_kv_heads", n_kv_heads, N_HEADS_MAX)?;
        check.count("head_dim", head_dim, HEAD_DIM_MAX)?;
        check.multiple(("n_heads", n_heads), ("n_kv_heads", n_kv_heads))?;
        if !head_dim.is_multiple_of(2) {
            return Err(check.out_of_range("head_dim", head_dim, "an even number"));
        }
        if let Some(window) = attention.window {
            check.count("sliding_window", window, CONTEXT_LEN_MAX)?;
        }
        check.positive("attention scale", f64::from(attention.scale))?;
        check.cap("attention softcap", attention.softcap)?;
        if let Some(QueryGrowth { beta, original_context_len }) = attention.query_growth {
            check.positive("query growth", f64::from(beta))?;
            check.original_context(original_context_len)?;
        }
        let Some(rope) = attention.rope else { return Ok(()) };
        let Some(rope) = self.ropes.get(rope) else {
            let allowed = format!("below {}", self.ropes.len());
            return Err(check.out_of_range("rope", rope, allowed));
        };
        if rope.rotary_dim > head_dim {
            return Err(check.inconsistent(("rotary_dim", rope.rotary_dim), ("head_dim", head_dim)));
        }
        Ok(())
    }
}

/// Checks of single fields.
struct Check<'a> {
    file: &'a str,
}

impl Check<'_> {
    fn count(&self, field: &str, value: usize, max: usize) -> Result<(), ConfigError> {
        match value {
            0 => Err(self.out_of_range(field, value, format!("1 to {max}"))),
            _ if value > max => Err(self.out_of_range(field, value, format!("1 to {max}"))),
            _ => Ok(()),
        }
    }

    fn positive(&self, field: &str, value: f64) -> Result<(), ConfigError> {
        match value.is_finite() && value > 0.0 {
            true => Ok(()),
            false => Err(self.out_of_range(field, value, "a finite number above 0")),
        }
    }

    fn cap(&self, field: &str, value: Option<f32>) -> Result<(), ConfigError> {
        value.map_or(Ok(()), |value| self.positive(field, f64::from(value)))
    }

    fn activation(&self, activation: Activation) -> Result<(), ConfigError> {
        match activation {
            Activation::Silu | Activation::GeluTanh => Ok(()),
            Activation::ClampedSwiglu { limit } => self.positive("swiglu_limit", f64::from(limit)),
        }
    }

    fn multiple(&self, of: (&str, usize), divisor: (&str, usize)) -> Result<(), ConfigError> {
        if of.1.is_multiple_of(divisor.1) { Ok(()) } else { Err(self.inconsistent(of, divisor)) }
    }

    fn original_context(&self, value: usize) -> Result<(), ConfigError> {
        let field = "rope_scaling.original_max_position_embeddings";
        self.count(field, value, CONTEXT_LEN_MAX)
    }

    fn rope(&self, rope: &RopeConfig) -> Result<(), ConfigError> {
        self.positive("rope_theta", rope.theta)?;
        self.count("rotary_dim", rope.rotary_dim, HEAD_DIM_MAX)?;
        if !rope.rotary_dim.is_multiple_of(2) {
            return Err(self.out_of_range("rotary_dim", rope.rotary_dim, "an even number"));
        }
        match &rope.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => self.positive("rope_scaling.factor", *factor),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context_len } => {
                self.positive("rope_scaling.factor", *factor)?;
                self.positive("rope_scaling.low_freq_factor", *low_freq_factor)?;
                self.positive("rope_scaling.high_freq_factor", *high_freq_factor)?;
                if high_freq_factor <= low_freq_factor {
                    let left = ("low_freq_factor", low_freq_factor);
                    return Err(self.inconsistent(left, ("high_freq_factor", high_freq_factor)));
                }
                self.original_context(*original_context_len)
            }
            RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_context_len,
                attention_factor,
                truncate: _,
            } => {
                self.positive("rope_scaling.factor", *factor)?;
                self.positive("rope_scaling.beta_fast", *beta_fast)?;
                self.positive("rope_scaling.beta_slow", *beta_slow)?;
                self.positive("rope_scaling.attention_factor", *attention_factor)?;
                // The ramp divides by the logarithm of the base.
                if rope.theta == 1.0 {
                    return Err(self.out_of_range("rope_theta", rope.theta, "not 1 with YaRN"));
                }
                self.original_context(*original_context_len)
            }
            RopeScaling::Proportional { n_pairs } => match *n_pairs <= rope.rotary_dim / 2 {
                true => Ok(()),
                false => Err(self.inconsistent(("n_pairs", n_pairs), ("rotary_dim", rope.rotary_dim))),
            },
            RopeScaling::Dynamic { factor, original_context_len } => {
                self.positive("rope_scaling.factor", *factor)?;
                // The exponent of the base divides by `rotary_dim − 2`.
                if rope.rotary_dim == 2 {
                    return Err(self.out_of_range("rotary_dim", 2, "above 2 with dynamic scaling"));
                }
                self.original_context(*original_context_len)
            }
            RopeScaling::Factors(factors) => self.factors("rope_freqs.weight", factors, rope),
            RopeScaling::LongRope { short, long, original_context_len, attention_factor } => {
                self.factors("rope_scaling.short_factor", short, rope)?;
                self.factors("rope_scaling.long_factor", long, rope)?;
                self.positive("rope_scaling.attention_factor", *attention_factor)?;
                self.original_context(*original_context_len)
            }
        }
    }

    fn factors(&self, field: &str, factors: &[f32], rope: &RopeConfig) -> Result<(), ConfigError> {
        if factors.len() != rope.rotary_dim / 2 {
            return Err(ConfigError::Inconsistent {
                file: self.file.to_owned(),
                left: format!("{field} with {} factors", factors.len()),
                right: format!("rotary_dim = {}", rope.rotary_dim),
            });
        }
        factors.iter().try_for_each(|&factor| self.positive(field, f64::from(factor)))
    }

    fn out_of_range(&self, field: &str, value: impl ToString, allowed: impl Into<String>) -> ConfigError {
        ConfigError::OutOfRange {
            file: self.file.to_owned(),
            field: field.to_owned(),
            value: value.to_string(),
            allowed: allowed.into(),
        }
    }

    fn inconsistent(&self, left: (&str, impl ToString), right: (&str, impl ToString)) -> ConfigError {
        ConfigError::Inconsistent {
            file: self.file.to_owned(),
            left: format!("{} = {}", left.0, left.1.to_string()),
            right: format!("{} = {}", right.0, right.1.to_string()),
        }
    }
}
