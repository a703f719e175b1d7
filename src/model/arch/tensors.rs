//! The tensors of a model: their roles, their shapes by the plan of each layer, and where containers store them.

use crate::model::config::{
    Attention, DeltaNet, Dense, DraftHead, Experts, FeedForward, KvSource, LayerPlan, Mamba2, Mixer,
    ModelConfig, QkNorm, Routing, ShortConv,
};

/// The role of a tensor in the model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WeightId {
    /// Token embedding, `[vocab_size, hidden_dim]`.
    Embedding,
    /// Norm before the head, `[hidden_dim]`.
    OutputNorm,
    /// Output matrix, `[vocab_size, hidden_dim]`, of an EAGLE-3 head `[draft_vocab_size, hidden_dim]`; absent if [`ModelConfig::tied_head`]
    /// is set.
    Head,
    /// Second token embedding, for all layers, `[per-layer vocab_size, n_layers · dim]`
    /// ([`PerLayerInputs`](crate::model::config::PerLayerInputs)).
    PerLayerEmbedding,
    /// Projection of the embedding to the inputs of all layers, `[n_layers · dim, hidden_dim]`.
    PerLayerProjection,
    /// Norm of the projected inputs of a layer, `[dim]`.
    PerLayerNorm,
    /// Projection of the embedding to residual stream 1, 2, …, `[hidden_dim, hidden_dim]`
    /// ([`Streams`](crate::model::config::Streams)), counted from 0.
    StreamIn(usize),
    /// Projection of residual stream 1, 2, … to the final hidden state, `[hidden_dim, hidden_dim]`, counted from 0.
    StreamOut(usize),
    /// Norm of the embedding before a draft head ([`ModelConfig::draft_head`]), `[hidden_dim]`.
    DraftEmbeddingNorm,
    /// Norm of the hidden state before it, `[hidden_dim]`.
    DraftHiddenNorm,
    /// Projection of both to its residual stream, `[hidden_dim, 2 · hidden_dim]`; the embedding comes first. Of EAGLE-3, that of the
    /// target's hidden states, `[hidden_dim, 3 · hidden_dim of the target]`.
    DraftInput,
    /// A tensor of one layer.
    Layer(usize, LayerWeight),
}

/// Declares the roles of a layer's tensors with their standard names in GGUF files and Hugging Face folders, behind the
/// prefix of the layer.
macro_rules! layer_weights {
    ($($(#[$doc:meta])* $role:ident: $gguf:literal, $json:literal;)*) => {
        /// The role of a tensor in a layer. Matrices are `[outputs, inputs]`.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum LayerWeight {
            $($(#[$doc])* $role,)*
        }

        impl LayerWeight {
            /// Every role.
            pub const ALL: &[LayerWeight] = &[$(Self::$role),*];

            /// The standard name in GGUF files, which packed files use too.
            fn gguf(self) -> &'static str {
                match self { $(Self::$role => $gguf,)* }
            }

            /// The standard name in Hugging Face folders.
            fn json(self) -> &'static str {
                match self { $(Self::$role => $json,)* }
            }
        }
    };
}

layer_weights! {
    /// Norm before the mixer, `[hidden_dim]`.
    AttnNorm: "attn_norm.weight", "input_layernorm.weight";
    /// Queries, `[n_heads · head_dim, hidden_dim]`, pairs of a rotation in halves.
    Q: "attn_q.weight", "self_attn.q_proj.weight";
    /// Keys, `[n_kv_heads · head_dim, hidden_dim]`, pairs of a rotation in halves.
    K: "attn_k.weight", "self_attn.k_proj.weight";
    /// Values, `[n_kv_heads · head_dim, hidden_dim]`.
    V: "attn_v.weight", "self_attn.v_proj.weight";
    /// Output projection of the mixer's attention, `[hidden_dim, n_heads · head_dim]`.
    O: "attn_output.weight", "self_attn.o_proj.weight";
    /// Gate of the attention's result, `[n_heads · head_dim, hidden_dim]`.
    AttnGate: "attn_out_gate.weight", "self_attn.gate_proj.weight";
    /// `[n_heads · head_dim]`.
    QBias: "attn_q.bias", "self_attn.q_proj.bias";
    /// `[n_kv_heads · head_dim]`.
    KBias: "attn_k.bias", "self_attn.k_proj.bias";
    /// `[n_kv_heads · head_dim]`.
    VBias: "attn_v.bias", "self_attn.v_proj.bias";
    /// `[hidden_dim]`.
    OBias: "attn_output.bias", "self_attn.o_proj.bias";
    /// `[head_dim]`, or `[n_heads · head_dim]`.
    QNorm: "attn_q_norm.weight", "self_attn.q_norm.weight";
    /// `[head_dim]`, or `[n_kv_heads · head_dim]`.
    KNorm: "attn_k_norm.weight", "self_attn.k_norm.weight";
    /// A score of each head without a value, `[n_heads]`.
    Sinks: "attn_sinks.weight", "self_attn.sinks";
    /// Norm behind the mixer, `[hidden_dim]`.
    PostAttnNorm: "post_attention_norm.weight", "post_attention_layernorm.weight";
    /// Norm before the feed-forward part, `[hidden_dim]`.
    FfnNorm: "ffn_norm.weight", "post_attention_layernorm.weight";
    /// `[ffn_dim, hidden_dim]`.
    Gate: "ffn_gate.weight", "mlp.gate_proj.weight";
    /// `[ffn_dim, hidden_dim]`.
    Up: "ffn_up.weight", "mlp.up_proj.weight";
    /// `[hidden_dim, ffn_dim]`.
    Down: "ffn_down.weight", "mlp.down_proj.weight";
    /// Norm behind the feed-forward part, `[hidden_dim]`.
    PostFfnNorm: "post_ffw_norm.weight", "post_feedforward_layernorm.weight";
    /// Gate of the layer's own inputs, `[dim, hidden_dim]`.
    PerLayerGate: "inp_gate.weight", "per_layer_input_gate.weight";
    /// Output projection of the layer's own inputs, `[hidden_dim, dim]`.
    PerLayerOut: "proj.weight", "per_layer_projection.weight";
    /// Norm behind the layer's own inputs, `[hidden_dim]`.
    PostPerLayerNorm: "post_norm.weight", "post_per_layer_input_norm.weight";
    /// Norm before the router of residual streams, `[hidden_dim]`.
    StreamRouterNorm: "altup_router_norm.weight", "altup.router_norm.weight";
    /// Router of residual streams, `[streams, hidden_dim]`, as one vector.
    StreamRouter: "altup_router.weight", "altup.modality_router.weight";
    /// Weights of predictions, `[streams · streams, streams]`, as one vector.
    StreamPredict: "altup_predict_coef.weight", "altup.prediction_coefs.weight";
    /// Weights of corrections, `[streams, streams]`, as one vector.
    StreamCorrect: "altup_correct_coef.weight", "altup.correction_coefs.weight";
    /// Factors of the active stream before the gate of the layer's own inputs, `[hidden_dim]`.
    StreamGateScale: "altup_correct_scale.weight", "altup.correct_output_scale";
    /// First matrix of the branch beside the mixer, `[rank, hidden_dim]`.
    BranchIn: "laurel_l.weight", "laurel.linear_left.weight";
    /// Second matrix of the branch, `[hidden_dim, rank]`.
    BranchOut: "laurel_r.weight", "laurel.linear_right.weight";
    /// Norm behind the branch, `[hidden_dim]`.
    PostBranchNorm: "laurel_post_norm.weight", "laurel.post_laurel_norm.weight";
    /// Factor of the residual stream behind the layer, `[1]`.
    OutputScale: "layer_output_scale.weight", "layer_scalar";
    /// Scores of the experts, `[n_experts, hidden_dim]`.
    Router: "ffn_gate_inp.weight", "mlp.gate.weight";
    /// `[n_experts]`.
    RouterBias: "ffn_gate_inp.bias", "mlp.gate.bias";
    /// What is added to the sigmoids of scores for the choice, `[n_experts]`.
    ChoiceBias: "exp_probs_b.bias", "mlp.expert_bias";
    /// All experts' gates, `[n_experts · ffn_dim, hidden_dim]`.
    ExpertGate: "ffn_gate_exps.weight", "mlp.experts.{expert}.gate_proj.weight";
    /// All experts' ups, `[n_experts · ffn_dim, hidden_dim]`.
    ExpertUp: "ffn_up_exps.weight", "mlp.experts.{expert}.up_proj.weight";
    /// All experts' downs, `[n_experts · hidden_dim, ffn_dim]`.
    ExpertDown: "ffn_down_exps.weight", "mlp.experts.{expert}.down_proj.weight";
    /// `[n_experts · ffn_dim]`.
    ExpertGateBias: "ffn_gate_exps.bias", "mlp.experts.{expert}.gate_proj.bias";
    /// `[n_experts · ffn_dim]`.
    ExpertUpBias: "ffn_up_exps.bias", "mlp.experts.{expert}.up_proj.bias";
    /// `[n_experts · hidden_dim]`.
    ExpertDownBias: "ffn_down_exps.bias", "mlp.experts.{expert}.down_proj.bias";
    /// `[shared_ffn_dim, hidden_dim]`.
    SharedGate: "ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight";
    /// `[shared_ffn_dim, hidden_dim]`.
    SharedUp: "ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight";
    /// `[hidden_dim, shared_ffn_dim]`.
    SharedDown: "ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight";
    /// Gate of the shared network's result, `[hidden_dim]`.
    SharedRouter: "ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight";
    /// Projections b, c and x of a short convolution, `[3 · conv_dim, hidden_dim]`.
    ConvIn: "shortconv.in_proj.weight", "conv.in_proj.weight";
    /// `[3 · conv_dim]`.
    ConvInBias: "shortconv.in_proj.bias", "conv.in_proj.bias";
    /// Output projection of a short convolution, `[hidden_dim, conv_dim]`.
    ConvOut: "shortconv.out_proj.weight", "conv.out_proj.weight";
    /// `[hidden_dim]`.
    ConvOutBias: "shortconv.out_proj.bias", "conv.out_proj.bias";
    /// Weights of a short convolution, `[conv_len, conv_dim]`, as one vector; the oldest position first.
    ShortConv: "shortconv.conv.weight", "conv.conv.weight";
    /// `[conv_dim]`.
    ShortConvBias: "shortconv.conv.bias", "conv.conv.bias";
    /// Queries, keys and values of a delta rule, `[conv_dim, hidden_dim]`.
    DeltaIn: "attn_qkv.weight", "linear_attn.in_proj_qkv.weight";
    /// Gate of a delta rule's result, `[n_value_heads · value_dim, hidden_dim]`.
    DeltaGate: "attn_gate.weight", "linear_attn.in_proj_z.weight";
    /// Learning rates, `[n_value_heads, hidden_dim]`.
    DeltaBeta: "ssm_beta.weight", "linear_attn.in_proj_b.weight";
    /// Time steps, `[n_value_heads, hidden_dim]`.
    DeltaStep: "ssm_alpha.weight", "linear_attn.in_proj_a.weight";
    /// Output projection of a delta rule, `[hidden_dim, n_value_heads · value_dim]`.
    DeltaOut: "ssm_out.weight", "linear_attn.out_proj.weight";
    /// Input projection of Mamba-2: gate, convolution's input, time steps, `[inner + conv_dim + n_heads, hidden_dim]`.
    MambaIn: "ssm_in.weight", "mamba.in_proj.weight";
    /// Output projection of Mamba-2, `[hidden_dim, inner]`.
    MambaOut: "ssm_out.weight", "mamba.out_proj.weight";
    /// Weights of the convolution before a state, `[conv_len, conv_dim]`, as one vector; the oldest position first.
    StateConv: "ssm_conv1d.weight", "mamba.conv1d.weight";
    /// `[conv_dim]`.
    StateConvBias: "ssm_conv1d.bias", "mamba.conv1d.bias";
    /// The rate of decay, −exp(A_log), of each head.
    StateA: "ssm_a", "mamba.A_log";
    /// Bias of the time steps, by head.
    StateStepBias: "ssm_dt.bias", "mamba.dt_bias";
    /// Weight of the input in the result, by head.
    StateSkip: "ssm_d", "mamba.D";
    /// Norm of a state's result, `[value_dim]` or `[inner]`.
    StateNorm: "ssm_norm.weight", "mamba.norm.weight";
    /// Norm before experts with norms of their own, `[hidden_dim]`.
    ExpertNorm: "pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight";
    /// Factors of the normed input of their router, `[hidden_dim]`.
    RouterScale: "ffn_gate_inp.scale", "router.scale";
    /// Factors of their weights, `[n_experts]`.
    ExpertScale: "ffn_down_exps.scale", "router.per_expert_scale";
    /// Norm behind the network that every row uses beside them, `[hidden_dim]`.
    PostSharedNorm: "post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight";
    /// Norm behind them, `[hidden_dim]`.
    PostExpertNorm: "post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight";
}

/// A tensor that a model has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its role.
    pub id: WeightId,
    /// `[rows, columns]`, or `[length]` of a vector.
    pub shape: Vec<u64>,
}

/// A kind of container with names of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Container {
    /// A GGUF file.
    Gguf,
    /// A Hugging Face folder.
    Json,
}

/// Where a container stores a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The stored tensors that hold it, one behind the other; one for most.
    pub names: Vec<String>,
    /// The shape of each stored tensor, rows first; dimensions of length 1 count for nothing.
    pub shape: Vec<u64>,
    /// Its rows in a stored tensor.
    pub rows: RowOrder,
    /// The change of the stored values.
    pub change: Change,
    /// The stored tensor with the exponents of blocks of MXFP4, if they lie apart from the codes.
    pub scales: Option<String>,
    /// Where the tensor is if this place is empty.
    pub or: Option<Box<Place>>,
}

/// Which rows of a stored tensor a tensor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// Its rows, in order.
    All,
    /// The rows of each head are stored in the pair order of GGUF's llama files (0, d/2, 1, d/2+1, …).
    Interleaved {
        /// Rows of a head.
        head_dim: usize,
    },
    /// Row `r` is stored as row `first + r / len · stride + r % len`.
    Blocks {
        /// The first row.
        first: usize,
        /// Consecutive rows.
        len: usize,
        /// From the beginning of a block to the next.
        stride: usize,
    },
}

impl RowOrder {
    /// The stored row of a row.
    pub fn stored(self, row: usize) -> usize {
        match self {
            Self::All => row,
            Self::Interleaved { head_dim } => {
                let (head, within) = (row / head_dim, row % head_dim);
                let half = head_dim / 2;
                head * head_dim + 2 * (within % half) + within / half
            }
            Self::Blocks { first, len, stride } => first + row / len * stride + row % len,
        }
    }
}

/// The change of a stored vector's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// None.
    Keep,
    /// 1 is added (norms that are stored as distances from 1).
    PlusOne,
    /// `−exp(x)`.
    MinusExp,
    /// A matrix with so many columns, column by column.
    Transposed {
        /// Columns of the stored matrix.
        n_cols: usize,
    },
}

impl Place {
    /// A tensor under a name of its own.
    pub(in crate::model) fn whole(name: impl Into<String>, slot: &Slot) -> Self {
        Self {
            names: vec![name.into()],
            shape: slot.shape.clone(),
            rows: RowOrder::All,
            change: Change::Keep,
            scales: None,
            or: None,
        }
    }

    /// The rows from `first` on of a stored tensor with `n_stored` rows.
    pub(in crate::model) fn part(
        name: impl Into<String>,
        slot: &Slot,
        first: usize,
        n_stored: usize,
    ) -> Self {
        Self::blocks(name, slot, (first, usize::MAX, 0), n_stored)
    }

    /// Blocks of rows, (first, length, stride), of a stored tensor with `n_stored` rows.
    pub(in crate::model) fn blocks(
        name: impl Into<String>,
        slot: &Slot,
        (first, len, stride): (usize, usize, usize),
        n_stored: usize,
    ) -> Self {
        let mut shape = slot.shape.clone();
        shape[0] = n_stored as u64;
        Self {
            names: vec![name.into()],
            shape,
            rows: RowOrder::Blocks { first, len, stride },
            change: Change::Keep,
            scales: None,
            or: None,
        }
    }

    pub(in crate::model) fn changed(mut self, change: Change) -> Self {
        self.change = change;
        self
    }

    pub(in crate::model) fn with_rows(mut self, rows: RowOrder) -> Self {
        self.rows = rows;
        self
    }

    /// Codes of MXFP4, `[n_stored, columns / 32, 16]` bytes, whose exponents are the stored tensor `scales`.
    pub(in crate::model) fn mxfp4(mut self, scales: String) -> Self {
        self.scales = Some(scales);
        self
    }

    pub(in crate::model) fn or(mut self, other: Place) -> Self {
        self.or = Some(Box::new(other));
        self
    }

    pub(in crate::model) fn shaped(mut self, shape: impl Into<Vec<u64>>) -> Self {
        self.shape = shape.into();
        self
    }
}

impl Slot {
    /// The tensor's place under its standard name.
    pub(in crate::model) fn standard(&self, config: &ModelConfig, container: Container) -> Place {
        let name = match container {
            Container::Gguf => standard_name(self.id),
            Container::Json => match self.id {
                WeightId::Embedding => "model.embed_tokens.weight".to_owned(),
                WeightId::OutputNorm => "model.norm.weight".to_owned(),
                WeightId::Head => "lm_head.weight".to_owned(),
                WeightId::PerLayerEmbedding => "model.embed_tokens_per_layer.weight".to_owned(),
                WeightId::PerLayerProjection => "model.per_layer_model_projection.weight".to_owned(),
                WeightId::PerLayerNorm => "model.per_layer_projection_norm.weight".to_owned(),
                WeightId::StreamIn(i) => format!("model.altup_projections.{i}.weight"),
                WeightId::StreamOut(i) => format!("model.altup_unembed_projections.{i}.weight"),
                WeightId::DraftEmbeddingNorm => "mtp.pre_fc_norm_embedding.weight".to_owned(),
                WeightId::DraftHiddenNorm => "mtp.pre_fc_norm_hidden.weight".to_owned(),
                WeightId::DraftInput => "mtp.fc.weight".to_owned(),
                WeightId::Layer(layer_idx, weight) => format!("model.layers.{layer_idx}.{}", weight.json()),
            },
        };
        let mut place = Place::whole(name, self);
        let WeightId::Layer(layer_idx, weight) = self.id else { return place };
        let layer = &config.layers[layer_idx];
        if let Some(conv) = conv_shape(layer, weight) {
            place.shape = conv.to_vec();
            place.change = Change::Transposed { n_cols: conv[1] as usize };
        }
        if let Some([n_rows, n_cols]) =
            config.streams.and_then(|streams| stream_shape(streams.n, config, weight))
        {
            place.shape = vec![n_rows as u64, n_cols as u64];
        }
        if let (FeedForward::Experts(experts), Some(n_rows)) =
            (&layer.feed, expert_rows(config, layer, weight))
        {
            place = place.stacked(experts.n_experts, n_rows, container);
        }
        if weight == LayerWeight::StateA && container == Container::Json {
            place.change = Change::MinusExp;
        }
        place
    }
}

impl Place {
    /// The experts' tensors: stacked in GGUF files, one by one in folders.
    fn stacked(mut self, n_experts: usize, n_rows: usize, container: Container) -> Self {
        let n_cols = self.shape[1..].to_vec();
        match container {
            Container::Gguf => {
                self.shape = [vec![n_experts as u64, n_rows as u64], n_cols].concat();
            }
            Container::Json => {
                let name = std::mem::take(&mut self.names).remove(0);
                self.names =
                    (0..n_experts).map(|expert| name.replace("{expert}", &expert.to_string())).collect();
                self.shape = [vec![n_rows as u64], n_cols].concat();
            }
        }
        self
    }
}

/// The stored shape of a convolution's weights.
fn conv_shape(layer: &LayerPlan, weight: LayerWeight) -> Option<[u64; 2]> {
    let (dim, len) = match (&layer.mixer, weight) {
        (Mixer::ShortConv(conv), LayerWeight::ShortConv) => (conv.conv_dim, conv.conv_len),
        (Mixer::DeltaNet(delta), LayerWeight::StateConv) => (delta.conv_dim(), delta.conv_len),
        (Mixer::Mamba2(mamba), LayerWeight::StateConv) => (mamba.conv_dim(), mamba.conv_len),
        _ => return None,
    };
    Some([dim as u64, len as u64])
}

/// The stored shape of a matrix of residual streams that is used as a vector.
fn stream_shape(n: usize, config: &ModelConfig, weight: LayerWeight) -> Option<[usize; 2]> {
    match weight {
        LayerWeight::StreamRouter => Some([n, config.hidden_dim]),
        LayerWeight::StreamPredict => Some([n * n, n]),
        LayerWeight::StreamCorrect => Some([n, n]),
        _ => None,
    }
}

/// Rows of one expert's tensor.
fn expert_rows(config: &ModelConfig, layer: &LayerPlan, weight: LayerWeight) -> Option<usize> {
    use LayerWeight::*;
    let FeedForward::Experts(experts) = &layer.feed else { return None };
    match weight {
        ExpertGate | ExpertUp | ExpertGateBias | ExpertUpBias => Some(experts.ffn_dim),
        ExpertDown | ExpertDownBias => Some(config.hidden_dim),
        _ => None,
    }
}

/// Whether a tensor is a matrix of experts, of which a pass reads only a part.
pub(in crate::model) fn is_expert_matrix(id: WeightId) -> bool {
    use LayerWeight::{ExpertDown, ExpertGate, ExpertUp};
    matches!(id, WeightId::Layer(_, ExpertGate | ExpertUp | ExpertDown))
}

/// The standard name of a tensor: that of GGUF files.
pub(in crate::model) fn standard_name(id: WeightId) -> String {
    match id {
        WeightId::Embedding => "token_embd.weight".to_owned(),
        WeightId::OutputNorm => "output_norm.weight".to_owned(),
        WeightId::Head => "output.weight".to_owned(),
        WeightId::PerLayerEmbedding => "per_layer_token_embd.weight".to_owned(),
        WeightId::PerLayerProjection => "per_layer_model_proj.weight".to_owned(),
        WeightId::PerLayerNorm => "per_layer_proj_norm.weight".to_owned(),
        WeightId::StreamIn(i) => format!("altup_proj.{i}.weight"),
        WeightId::StreamOut(i) => format!("altup_unembd_proj.{i}.weight"),
        WeightId::DraftEmbeddingNorm => "nextn.enorm.weight".to_owned(),
        WeightId::DraftHiddenNorm => "nextn.hnorm.weight".to_owned(),
        WeightId::DraftInput => "nextn.eh_proj.weight".to_owned(),
        WeightId::Layer(layer_idx, weight) => format!("blk.{layer_idx}.{}", weight.gguf()),
    }
}

/// All tensors of a model.
pub fn slots(config: &ModelConfig) -> Vec<Slot> {
    let (hidden, vocab) = (config.hidden_dim as u64, config.vocab_size as u64);
    let mut slots = vec![
        Slot { id: WeightId::Embedding, shape: vec![vocab, hidden] },
        Slot { id: WeightId::OutputNorm, shape: vec![hidden] },
    ];
    if !config.tied_head {
        slots.push(Slot { id: WeightId::Head, shape: vec![config.n_logits() as u64, hidden] });
    }
    if let Some(per_layer) = config.per_layer {
        let (dims, rows) = (config.per_layer_dims() as u64, per_layer.vocab_size as u64);
        slots.push(Slot { id: WeightId::PerLayerEmbedding, shape: vec![rows, dims] });
        slots.push(Slot { id: WeightId::PerLayerProjection, shape: vec![dims, hidden] });
        slots.push(Slot { id: WeightId::PerLayerNorm, shape: vec![per_layer.dim as u64] });
    }
    if let Some(streams) = config.streams {
        let ids = (1..streams.n).flat_map(|i| [WeightId::StreamIn(i - 1), WeightId::StreamOut(i - 1)]);
        slots.extend(ids.map(|id| Slot { id, shape: vec![hidden, hidden] }));
    }
    if let Some(head) = &config.draft_head {
        let input_dim = match head {
            DraftHead::Mtp => 2 * hidden,
            DraftHead::Eagle3(_) => config.target_state_dim() as u64,
        };
        slots.push(Slot { id: WeightId::DraftEmbeddingNorm, shape: vec![hidden] });
        slots.push(Slot { id: WeightId::DraftHiddenNorm, shape: vec![hidden] });
        slots.push(Slot { id: WeightId::DraftInput, shape: vec![hidden, input_dim] });
    }
    for (layer_idx, layer) in config.layers.iter().enumerate() {
        let of_layer = layer_slots(config, layer).into_iter();
        slots.extend(of_layer.map(|(weight, shape)| Slot { id: WeightId::Layer(layer_idx, weight), shape }));
    }
    slots
}

/// The tensors of a layer.
pub(in crate::model) fn layer_slots(config: &ModelConfig, layer: &LayerPlan) -> Vec<(LayerWeight, Vec<u64>)> {
    use LayerWeight::*;
    let hidden_dim = config.hidden_dim;
    let hidden = hidden_dim as u64;
    let mut slots = Slots::default();
    // The layer of an EAGLE-3 head reads embeddings and hidden states, normed each by itself.
    let input_dim = if config.eagle3().is_some() { 2 * hidden_dim } else { hidden_dim };
    if layer.norms.has_pre() && input_dim == hidden_dim {
        slots.vector(AttnNorm, hidden_dim);
    }
    match &layer.mixer {
        Mixer::Attention(attention) => slots.attention(input_dim, hidden_dim, attention),
        Mixer::ShortConv(conv) => slots.short_conv(hidden_dim, conv),
        Mixer::DeltaNet(delta) => slots.delta_net(hidden_dim, delta),
        Mixer::Mamba2(mamba) => slots.mamba2(hidden_dim, mamba),
    }
    if layer.norms.has_post() {
        slots.vector(PostAttnNorm, hidden_dim);
    }
    if layer.feed != FeedForward::None && layer.norms.has_pre() {
        slots.vector(FfnNorm, hidden_dim);
    }
    match &layer.feed {
        FeedForward::None => {}
        FeedForward::Dense(Dense { ffn_dim, .. }) => {
            let ffn = *ffn_dim as u64;
            slots.0.extend([(Gate, vec![ffn, hidden]), (Up, vec![ffn, hidden]), (Down, vec![hidden, ffn])]);
        }
        FeedForward::Experts(experts) => slots.experts(hidden_dim, experts),
    }
    if let Mixer::Attention(attention) = &layer.mixer {
        slots.attention_vectors(hidden_dim, attention);
    }
    if layer.feed != FeedForward::None && layer.norms.has_post() {
        slots.vector(PostFfnNorm, hidden_dim);
    }
    if let Some(per_layer) = config.per_layer {
        slots.matrix(PerLayerGate, per_layer.dim, hidden_dim);
        slots.matrix(PerLayerOut, hidden_dim, per_layer.dim);
        slots.vector(PostPerLayerNorm, hidden_dim);
    }
    if let Some(streams) = config.streams {
        slots.vector(StreamRouterNorm, hidden_dim);
        for weight in [StreamRouter, StreamPredict, StreamCorrect] {
            let shape = stream_shape(streams.n, config, weight);
            slots.vector(weight, shape.map_or(0, |[n_rows, n_cols]| n_rows * n_cols));
        }
        if streams.gate_scaled {
            slots.vector(StreamGateScale, hidden_dim);
        }
    }
    if let Some(rank) = layer.branch_rank {
        slots.matrix(BranchIn, rank, hidden_dim);
        slots.matrix(BranchOut, hidden_dim, rank);
        slots.vector(PostBranchNorm, hidden_dim);
    }
    if layer.output_scaled {
        slots.vector(OutputScale, 1);
    }
    slots.0
}

/// Roles and shapes of a layer's tensors, being listed.
#[derive(Default)]
struct Slots(Vec<(LayerWeight, Vec<u64>)>);

impl Slots {
    fn matrix(&mut self, weight: LayerWeight, n_rows: usize, n_cols: usize) {
        self.0.push((weight, vec![n_rows as u64, n_cols as u64]));
    }

    fn vector(&mut self, weight: LayerWeight, len: usize) {
        self.0.push((weight, vec![len as u64]));
    }

    fn attention(&mut self, input_dim: usize, hidden_dim: usize, attention: &Attention) {
        use LayerWeight::*;
        let (q_dim, kv_dim) = (attention.q_dim(), attention.kv_dim());
        let (has_k, has_v) = (attention.kv_layer().is_none(), attention.kv == KvSource::Own);
        self.matrix(Q, q_dim, input_dim);
        if has_k {
            self.matrix(K, kv_dim, input_dim);
        }
        if has_v {
            self.matrix(V, kv_dim, input_dim);
        }
        if attention.gated {
            self.matrix(AttnGate, q_dim, input_dim);
        }
        self.matrix(O, hidden_dim, q_dim);
    }

    /// Biases, norms and sinks of attention. They lie behind the matrices of the layer, where packed files always had them:
    /// identities follow from the order.
    fn attention_vectors(&mut self, hidden_dim: usize, attention: &Attention) {
        use LayerWeight::*;
        let (q_dim, kv_dim) = (attention.q_dim(), attention.kv_dim());
        let (has_k, has_v) = (attention.kv_layer().is_none(), attention.kv == KvSource::Own);
        if attention.qkv_bias {
            self.vector(QBias, q_dim);
            if has_k {
                self.vector(KBias, kv_dim);
            }
            if has_v {
                self.vector(VBias, kv_dim);
            }
        }
        if attention.o_bias {
            self.vector(OBias, hidden_dim);
        }
        let norm_lens = attention.qk_norm.map(|norm| match norm {
            QkNorm::Head => (attention.head_dim, attention.head_dim),
            QkNorm::Row => (q_dim, kv_dim),
        });
        if let Some((of_queries, of_keys)) = norm_lens {
            self.vector(QNorm, of_queries);
            if has_k {
                self.vector(KNorm, of_keys);
            }
        }
        if attention.sinks {
            self.vector(Sinks, attention.n_heads);
        }
    }

    fn short_conv(&mut self, hidden_dim: usize, conv: &ShortConv) {
        use LayerWeight::*;
        self.matrix(ConvIn, 3 * conv.conv_dim, hidden_dim);
        self.vector(LayerWeight::ShortConv, conv.conv_dim * conv.conv_len);
        self.matrix(ConvOut, hidden_dim, conv.conv_dim);
        if conv.bias {
            self.vector(ConvInBias, 3 * conv.conv_dim);
            self.vector(ShortConvBias, conv.conv_dim);
            self.vector(ConvOutBias, hidden_dim);
        }
    }

    fn delta_net(&mut self, hidden_dim: usize, delta: &DeltaNet) {
        use LayerWeight::*;
        let inner = delta.n_value_heads * delta.value_dim;
        self.matrix(DeltaIn, delta.conv_dim(), hidden_dim);
        self.matrix(DeltaGate, inner, hidden_dim);
        self.matrix(DeltaBeta, delta.n_value_heads, hidden_dim);
        self.matrix(DeltaStep, delta.n_value_heads, hidden_dim);
        self.vector(StateConv, delta.conv_dim() * delta.conv_len);
        self.vector(StateA, delta.n_value_heads);
        self.vector(StateStepBias, delta.n_value_heads);
        self.vector(StateNorm, delta.value_dim);
        self.matrix(DeltaOut, hidden_dim, inner);
    }

    fn mamba2(&mut self, hidden_dim: usize, mamba: &Mamba2) {
        use LayerWeight::*;
        self.matrix(MambaIn, mamba.inner_dim() + mamba.conv_dim() + mamba.n_heads, hidden_dim);
        self.vector(StateConv, mamba.conv_dim() * mamba.conv_len);
        if mamba.conv_bias {
            self.vector(StateConvBias, mamba.conv_dim());
        }
        self.vector(StateA, mamba.n_heads);
        self.vector(StateStepBias, mamba.n_heads);
        self.vector(StateSkip, mamba.n_heads);
        self.vector(StateNorm, mamba.inner_dim());
        self.matrix(MambaOut, hidden_dim, mamba.inner_dim());
    }

    fn experts(&mut self, hidden_dim: usize, experts: &Experts) {
        use LayerWeight::*;
        let n_rows = experts.n_experts * experts.ffn_dim;
        self.matrix(Router, experts.n_experts, hidden_dim);
        self.matrix(ExpertGate, n_rows, hidden_dim);
        self.matrix(ExpertUp, n_rows, hidden_dim);
        self.matrix(ExpertDown, experts.n_experts * hidden_dim, experts.ffn_dim);
        if experts.bias {
            self.vector(RouterBias, experts.n_experts);
            self.vector(ExpertGateBias, n_rows);
            self.vector(ExpertUpBias, n_rows);
            self.vector(ExpertDownBias, experts.n_experts * hidden_dim);
        }
        if let Routing::Sigmoid { biased: true, .. } = experts.routing {
            self.vector(ChoiceBias, experts.n_experts);
        }
        if experts.shared_ffn_dim > 0 {
            self.matrix(SharedGate, experts.shared_ffn_dim, hidden_dim);
            self.matrix(SharedUp, experts.shared_ffn_dim, hidden_dim);
            self.matrix(SharedDown, hidden_dim, experts.shared_ffn_dim);
        }
        if experts.shared_gated {
            self.vector(SharedRouter, hidden_dim);
        }
        if experts.own_norms {
            for norm in [ExpertNorm, RouterScale, PostSharedNorm, PostExpertNorm] {
                self.vector(norm, hidden_dim);
            }
            self.vector(ExpertScale, experts.n_experts);
        }
    }
}

/// Where a container stores the tensor.
pub fn place(config: &ModelConfig, slot: &Slot, container: Container) -> Place {
    let family = config.architecture.family();
    let mut place = (family.place)(config, slot, container);
    let interleaves = family.interleaves && container == Container::Gguf;
    if let (WeightId::Layer(layer_idx, weight), true) = (slot.id, interleaves) {
        use LayerWeight::{K, KBias, Q, QBias};
        if let (Some(attention), Q | K | QBias | KBias) = (config.attention(layer_idx), weight) {
            place.rows = RowOrder::Interleaved { head_dim: attention.head_dim };
        }
    }
    place
}

/// Where a container stores a tensor of a head for multi-token prediction. In GGUF files the layer of the head is block `block`.
pub(in crate::model) fn mtp_place(
    config: &ModelConfig,
    slot: &Slot,
    container: Container,
    block: usize,
) -> Place {
    let own_block = |rest: &str| format!("blk.{block}.{rest}");
    let mut place = match slot.id {
        WeightId::DraftEmbeddingNorm | WeightId::DraftHiddenNorm | WeightId::DraftInput => {
            slot.standard(config, container)
        }
        _ => place(config, slot, container),
    };
    let is_norm = matches!(slot.id, WeightId::DraftEmbeddingNorm | WeightId::DraftHiddenNorm);
    if container == Container::Json && is_norm {
        // As the family stores its other norms.
        let output_norm = Slot { id: WeightId::OutputNorm, shape: slot.shape.clone() };
        place.change = self::place(config, &output_norm, container).change;
    }
    for name in &mut place.names {
        let rest = match container {
            Container::Gguf => name.strip_prefix("blk.0."),
            Container::Json => name.strip_prefix("model.layers.0."),
        };
        *name = match (container, slot.id, rest) {
            (Container::Gguf, WeightId::OutputNorm, _) => own_block("nextn.shared_head_norm.weight"),
            (Container::Json, WeightId::OutputNorm, _) => "mtp.norm.weight".to_owned(),
            (Container::Gguf, _, Some(rest)) => own_block(rest),
            (Container::Json, _, Some(rest)) => format!("mtp.layers.0.{rest}"),
            (Container::Gguf, _, None) if name.starts_with("nextn.") => own_block(name),
            _ => continue,
        };
    }
    // A head without a norm of its own has that of its target.
    if let (Container::Gguf, WeightId::OutputNorm) = (container, slot.id) {
        return place.or(slot.standard(config, container));
    }
    place
}

/// Whether a stored tensor only repeats the configuration or another tensor. Some files contain such tensors.
pub(in crate::model) fn is_redundant(name: &str, config: &ModelConfig) -> bool {
    name == "rope_freqs.weight"
        || name.ends_with("rotary_emb.inv_freq")
        || name.ends_with("attn_rot_embd.weight")
        || (config.tied_head && name == "lm_head.weight")
        || (config.architecture.family().has_mtp() && config.draft_head.is_none() && name.starts_with("mtp."))
        || (config.eagle3().is_some() && is_of_draft_vocabulary(name))
        || is_replaced_kv(name, config)
        || (config.architecture.family().is_redundant)(name, config)
}

/// Whether a tensor makes keys or values in a layer that uses those of another layer. Published files contain such tensors.
fn is_replaced_kv(name: &str, config: &ModelConfig) -> bool {
    let of_layer = |prefix: &str| {
        let (layer_idx, rest) = name.split_once(prefix)?.1.split_once('.')?;
        Some((layer_idx.parse().ok()?, rest))
    };
    let Some((layer_idx, rest)) = of_layer("layers.").or_else(|| of_layer("blk.")) else { return false };
    use LayerWeight::{K, KBias, KNorm, V, VBias};
    let makes_kv = [K, KBias, KNorm, V, VBias].iter().any(|w| rest == w.gguf() || rest == w.json());
    makes_kv && config.attention(layer_idx).is_some_and(|attention| attention.kv_layer().is_some())
}

/// The tensor of an EAGLE-3 head with the distance of each token of the draft vocabulary from its number there.
pub(in crate::model) const DRAFT_TO_TARGET: &str = "d2t";

/// Whether a tensor maps vocabularies. `t2d` repeats [`DRAFT_TO_TARGET`].
fn is_of_draft_vocabulary(name: &str) -> bool {
    name == DRAFT_TO_TARGET || name == "t2d"
}
