//! The account of a generation: the time that drafts have saved, and what they may spend.
//!
//! A step without a draft is a plain step. A step with a draft takes longer, and is repaid only if drafts are accepted. With
//!
//! - `u_i`: the time of step `i`, and `c_i ≥ 1`: the tokens that it commits;
//! - `p_i`: the estimated time of a plain step at that place in the text;
//! - `C`: the time of the prompt, whether it was computed or kept, and `T = Σ u_i`: the time of decoding so far;
//! - `s`: half of the stake, and `carried`: what earlier answers left,
//!
//! the balance is
//!
//! ```text
//! balance = Σ (p_i · c_i − u_i) + s · (C + T) + min(carried, s · (C + T))        (in a plain step only the time of drafting counts)
//! left    = Σ (p_i · c_i − u_i) + s · (C + T) + carried
//! ```
//!
//! A draft is bought only if its price, the expected time of its step beyond a plain one, is at most the balance and 14 plain steps. What an answer leaves is
//! what drafts saved and what remains of its half of the stake, or a debt; the next answer carries it. So an answer lends half of the stake
//! from the time that it takes itself, and half from the time that earlier answers saved. Short answers draft from the latter.
//!
//! **Bound.** Let `e` be the largest amount by which a step exceeded its price, without interruptions ([`INTERRUPTED_STEPS`]), and
//! `P = Σ p_i · c_i` the estimated time of plain decoding. Then
//!
//! ```text
//! an answer:                  C + T  ≤  (C + P + e) / (1 − stake)
//! all answers of an engine:  Σ (C + T) ≤ (Σ (C + P) + e) / (1 − stake / 2)
//! ```
//!
//! *Proof.* A step with a draft leaves a balance of at least `balance − price − (u_i − p_i − price) + p_i (c_i − 1) ≥ −e`, because
//! `price ≤ balance` and `c_i ≥ 1`. While the balance is negative, no draft is bought, and it rises with `T`. So it does not fall below `−e`
//! (errors of prices do not add up), unless it began there with a debt, which `left` repays. With `min(carried, …) ≤ s · (C + T)` that is the
//! bound of an answer, with `min(carried, …) ≤ carried` it is `left ≥ −e` and the bound of all. ∎
//!
//! The bound is as good as `p_i`. It is learned from plain steps only, rises slowly and falls fast, and never exceeds what the common
//! level of all steps implies: too low an estimate costs drafts, too high a one would cost time.

/// Weight of a plain step in the estimate of plain steps, by whether it took longer or less long than the estimate.
const RISE: f64 = 1.0 / 8.0;
const FALL: f64 = 1.0 / 2.0;
/// A plain step that takes more than e^0.7 ≈ 2 times as long as the estimate was interrupted, and counts as 2 times.
const LOG_ERROR_MAX: f64 = 0.7;
/// A step that takes longer than this many plain ones was interrupted, which is not the draft's fault: the rest does not count.
const INTERRUPTED_STEPS: f64 = 16.0;
/// A draft costs at most this many plain steps: 64 rows cost 14 on the measured machines.
const PRICE_STEPS_MAX: f64 = INTERRUPTED_STEPS - 2.0;
/// Share of the stake that an answer lends from its own time. The rest comes from what earlier answers left.
const OWN_SHARE: f64 = 0.5;
/// Until the first step has ended, drafts may cost no more than this: the first text should not wait for later ones.
const FIRST_TEXT_US: f64 = 1000.0;
/// Weight of a step in the mean time of drafting.
const DRAFTING_RATE: f64 = 1.0 / 8.0;
/// Factor on that mean in a step that may not draft: a draft that was slow once is tried again, half as dear, after 44 steps.
const DRAFTING_FADING: f64 = 63.0 / 64.0;

/// The time that drafts of a generation have saved, and may spend: `policy/account.rs` has the rules and the bound.
#[derive(Debug, Clone, Default)]
pub struct Account {
    /// Share of the time that drafts may lose; `None`: drafts need not be paid.
    stake: Option<f64>,
    /// What earlier generations left; negative: what they owe.
    carried_us: f64,
    saved_us: f64,
    elapsed_us: f64,
    plain: Option<PlainStep>,
    /// Whether a step has ended, so that there is text.
    has_text: bool,
    /// Mean time of drafting and of learning in a step that may draft, in µs.
    drafting_us: f64,
}

/// The time of a plain step, as measured.
#[derive(Debug, Clone, Copy)]
struct PlainStep {
    /// In µs, at the present length of the text.
    us: f64,
    /// `us` divided by the time that the costs expected.
    ratio: f64,
}

/// A finished step.
#[derive(Debug, Clone, Copy)]
pub struct StepTime {
    /// Time of drafting and of learning, in µs.
    pub drafting_us: f64,
    /// All other time, in µs: that of a plain step, if nothing was drafted.
    pub other_us: f64,
    /// Time of a plain pass by the costs, in µs.
    pub row_us: f64,
    /// Committed tokens.
    pub n_tokens: usize,
    /// Whether rows were drafted.
    pub has_draft: bool,
    /// Whether sources were asked.
    pub may_draft: bool,
    /// Whether other generations shared the pass. Its plain time is not learned.
    pub is_shared: bool,
}

impl Account {
    /// Begins a generation behind a prompt that takes `prompt_us`, and with what earlier ones left. The estimate of a plain
    /// step stays, and follows the costs.
    pub fn begin(&mut self, stake: Option<f32>, (carried_us, prompt_us): (f64, f64), row_us: f64) {
        self.stake = stake.map(f64::from);
        (self.carried_us, self.saved_us, self.elapsed_us) = (carried_us, 0.0, time(prompt_us));
        self.has_text = false;
        if let Some(plain) = &mut self.plain {
            plain.us = plain.ratio * row_us;
        }
    }

    /// Counts the time in which the sources read the prompt.
    pub fn primed(&mut self, us: f64) {
        self.elapsed_us += time(us);
        self.saved_us -= time(us);
    }

    /// Moves the estimate of a plain step to a longer text.
    pub fn scale(&mut self, factor: f64) {
        if let Some(plain) = self.plain.as_mut().filter(|_| factor.is_finite() && factor > 0.0) {
            plain.us *= factor;
        }
    }

    /// What drafts may cost now, in µs; infinite without a bound. Negative: they have cost more than they were allowed to.
    pub fn balance_us(&self) -> f64 {
        let Some(stake) = self.stake else { return f64::INFINITY };
        let stake_us = stake * self.elapsed_us;
        let may_lose_us = OWN_SHARE * stake_us + self.carried_us.min((1.0 - OWN_SHARE) * stake_us);
        self.saved_us + if self.has_text { may_lose_us } else { may_lose_us.min(FIRST_TEXT_US) }
    }

    /// What the rows of a draft may cost now, in µs: the balance, less the time of drafting them. `row_us` as in
    /// [`plain_us`](Self::plain_us). Less than what counts as an interruption.
    pub fn extra_us(&self, row_us: f64) -> f64 {
        let most_us = self.stake.map_or(f64::INFINITY, |_| PRICE_STEPS_MAX * self.plain_us(row_us));
        self.balance_us().min(most_us) - self.drafting_us
    }

    /// What drafts have saved in this generation, in µs; negative: lost.
    pub fn saved_us(&self) -> f64 {
        self.saved_us
    }

    /// Estimated time of a plain step, in µs, if the costs expect `row_us` for its pass.
    pub fn plain_us(&self, row_us: f64) -> f64 {
        self.plain.map_or(row_us, |plain| plain.us.min(plain.ratio * row_us))
    }

    /// Counts a finished step, and learns the time of plain ones.
    pub fn observe(&mut self, step: StepTime) {
        let (drafting_us, other_us) = (time(step.drafting_us), time(step.other_us));
        self.has_text = true;
        self.elapsed_us += drafting_us + other_us;
        if step.has_draft {
            let plain_us = self.plain_us(step.row_us);
            self.saved_us += (plain_us * step.n_tokens as f64 - other_us).max(-INTERRUPTED_STEPS * plain_us);
        } else if other_us > 0.0 && step.row_us > 0.0 && !step.is_shared {
            let ratio = other_us / step.row_us;
            match &mut self.plain {
                Some(plain) => {
                    follow(&mut plain.us, other_us);
                    follow(&mut plain.ratio, ratio);
                }
                None => self.plain = Some(PlainStep { us: other_us, ratio }),
            }
        }
        self.saved_us -= drafting_us;
        match step.may_draft {
            true => self.drafting_us += DRAFTING_RATE * (drafting_us - self.drafting_us),
            false => self.drafting_us *= DRAFTING_FADING,
        }
    }

    /// Ends the generation. Returns what it leaves to the next one, in µs; negative: what it owes.
    pub fn end(&mut self) -> f64 {
        let Some(stake) = self.stake.take() else { return 0.0 };
        self.saved_us + OWN_SHARE * stake * self.elapsed_us + self.carried_us
    }
}

/// What ended generations left, in µs; negative: what they owe. The next generation takes all of it at its start.
#[derive(Debug, Default)]
pub(crate) struct Carried(f64);

impl Carried {
    pub(crate) fn take(&mut self) -> f64 {
        std::mem::take(&mut self.0)
    }

    pub(crate) fn put(&mut self, us: f64) {
        self.0 += us;
    }
}

/// A time that was measured with a clock that may be wrong.
fn time(us: f64) -> f64 {
    if us.is_finite() { us.max(0.0) } else { 0.0 }
}

/// Moves a positive mean towards a sample.
fn follow(mean: &mut f64, sample: f64) {
    let error = (sample / *mean).ln().clamp(-LOG_ERROR_MAX, LOG_ERROR_MAX);
    *mean *= (error * if error < 0.0 { FALL } else { RISE }).exp();
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STAKE: Option<f32> = Some(0.01);

    /// A device and a text that work against the account.
    #[derive(Debug, Clone)]
    struct Adversary {
        /// Time of a plain step, by step: heat, neighbours that come and go.
        plain_us: Vec<f64>,
        /// Tokens that each step's draft commits.
        accepted: Vec<usize>,
        /// By how much a step exceeds its price, as a share of a plain step.
        excess: Vec<f64>,
        /// Time spent on drafting in each step, as a share of a plain step.
        drafting: Vec<f64>,
    }

    fn adversary() -> impl Strategy<Value = Adversary> {
        let n = 1..400usize;
        n.prop_flat_map(|n| {
            (
                prop::collection::vec(prop_oneof![Just(1000.0), 500.0..4000.0f64], n),
                prop::collection::vec(prop_oneof![8 => Just(1usize), 1 => 2..9usize], n),
                prop::collection::vec(prop_oneof![4 => Just(0.0), 1 => 0.0..0.5f64], n),
                prop::collection::vec(0.0..0.02f64, n),
            )
                .prop_map(|(plain_us, accepted, excess, drafting)| Adversary {
                    plain_us,
                    accepted,
                    excess,
                    drafting,
                })
        })
    }

    /// What a run took, what plain decoding was estimated to take, and the largest excess over a price.
    struct Result {
        took_us: f64,
        plain_us: f64,
        excess_us: f64,
    }

    /// Spends the whole balance on each draft.
    fn run(adversary: &Adversary, account: &mut Account, is_known: bool) -> Result {
        let (mut took_us, mut estimated_us, mut excess_us) = (0.0, 0.0, 0.0f64);
        let steps = adversary.plain_us.iter().zip(&adversary.accepted);
        for ((&plain_us, &accepted), (excess, drafting)) in
            steps.zip(adversary.excess.iter().zip(&adversary.drafting))
        {
            let row_us = if is_known { plain_us } else { 1000.0 };
            let estimate_us = if is_known { plain_us } else { account.plain_us(row_us) };
            if is_known {
                account.plain = Some(PlainStep { us: plain_us, ratio: 1.0 });
            }
            let drafting_us = drafting * plain_us;
            let price_us = account.balance_us().min(PRICE_STEPS_MAX * estimate_us);
            let has_draft = price_us > drafting_us;
            let mut step = StepTime {
                drafting_us: 0.0,
                other_us: plain_us,
                row_us,
                n_tokens: 1,
                has_draft,
                may_draft: has_draft,
                is_shared: false,
            };
            if has_draft {
                let over_us = excess * plain_us;
                excess_us = excess_us.max(over_us);
                step.drafting_us = drafting_us;
                step.other_us = estimate_us + price_us - drafting_us + over_us;
                step.n_tokens = accepted;
                estimated_us += estimate_us * accepted as f64;
            } else {
                estimated_us += plain_us;
            }
            took_us += step.drafting_us + step.other_us;
            account.observe(step);
        }
        Result { took_us, plain_us: estimated_us, excess_us }
    }

    proptest! {
        /// The bound, whatever the device and the text do.
        #[test]
        fn no_text_and_no_device_makes_drafts_lose_more_than_the_stake(
            adversary in adversary(),
            is_known: bool,
            carried_us in -3000.0..3000.0f64,
            prefill_us in 0.0..50_000.0f64,
        ) {
            let mut account = Account::default();
            account.begin(STAKE, (carried_us, prefill_us), 1000.0);
            let Result { took_us, plain_us, excess_us } = run(&adversary, &mut account, is_known);
            let stake = if carried_us > 0.0 { 0.01 } else { 0.005 };
            let bound_us = (plain_us + prefill_us + excess_us) / (1.0 - stake);
            prop_assert!(took_us + prefill_us <= bound_us + 1e-6, "{} > {bound_us}", took_us + prefill_us);
            prop_assert!(account.balance_us() >= -excess_us.max(-carried_us) - 1e-6);
        }

        /// A conversation is bounded as a whole.
        #[test]
        fn all_answers_together_lose_no_more_than_one(answers in prop::collection::vec(adversary(), 1..6)) {
            let (mut took_us, mut plain_us, mut excess_us) = (0.0, 0.0, 0.0f64);
            let (mut account, mut carried_us) = (Account::default(), 0.0);
            for adversary in &answers {
                account.begin(STAKE, (carried_us, 0.0), 1000.0);
                let result = run(adversary, &mut account, true);
                (took_us, plain_us) = (took_us + result.took_us, plain_us + result.plain_us);
                excess_us = excess_us.max(result.excess_us);
                carried_us = account.end();
            }
            prop_assert!(took_us <= (plain_us + excess_us) / 0.995 + 1e-6);
        }

        /// Clocks that stop, run backwards or give nonsense end nothing.
        #[test]
        fn clocks_may_be_wrong(times in prop::collection::vec(any::<[f64; 3]>(), 1..50)) {
            let mut account = Account::default();
            account.begin(STAKE, (0.0, 0.0), 1000.0);
            for (step, [drafting_us, other_us, row_us]) in times.into_iter().enumerate() {
                let (has_draft, is_shared) = (step % 2 == 0, step % 5 == 0);
                account.scale(row_us);
                account.observe(StepTime { drafting_us, other_us, row_us, n_tokens: 1, has_draft, may_draft: has_draft, is_shared });
            }
            let _ = (account.balance_us(), account.end());
        }
    }

    fn plain(us: f64) -> StepTime {
        StepTime {
            drafting_us: 0.0,
            other_us: us,
            row_us: 1000.0,
            n_tokens: 1,
            has_draft: false,
            may_draft: false,
            is_shared: false,
        }
    }

    fn drafted(us: f64, n_tokens: usize) -> StepTime {
        StepTime { n_tokens, has_draft: true, may_draft: true, ..plain(us) }
    }

    #[test]
    fn a_draft_that_is_accepted_pays_for_many() {
        let mut account = Account::default();
        account.begin(STAKE, (0.0, 0.0), 1000.0);
        account.observe(plain(1000.0));
        assert!((account.balance_us() - 5.0).abs() < 1e-3, "half a percent of the time elapsed");
        account.observe(drafted(1500.0, 3));
        assert!(account.balance_us() > 1500.0);
    }

    #[test]
    fn a_long_prompt_pays_for_the_second_draft() {
        let mut account = Account::default();
        account.begin(STAKE, (0.0, 400_000.0), 1000.0);
        account.primed(100.0);
        assert!((account.balance_us() - 900.0).abs() < 1e-3, "the first text does not wait");
        account.observe(plain(1000.0));
        assert!((account.balance_us() - (2000.0 + 0.5 + 5.0 - 100.0)).abs() < 1e-3);
    }

    #[test]
    fn an_interruption_teaches_little_and_a_faster_device_at_once() {
        let mut account = Account::default();
        account.begin(STAKE, (0.0, 0.0), 1000.0);
        account.observe(plain(1000.0));
        account.observe(plain(60e6));
        assert!(account.plain_us(1000.0) < 1100.0, "a plain step that takes a minute once");
        (0..4).for_each(|_| account.observe(plain(700.0)));
        assert!(account.plain_us(1000.0) < 740.0);
        (0..40).for_each(|_| account.observe(plain(2000.0)));
        assert!(account.plain_us(1000.0) > 1900.0);
        assert!(account.plain_us(500.0) < 1000.0, "other steps have become faster");
    }

    #[test]
    fn a_draft_that_was_slow_once_is_tried_again() {
        let mut account = Account::default();
        account.begin(STAKE, (0.0, 599_000.0), 1000.0);
        account.observe(plain(1000.0));
        account.observe(StepTime { drafting_us: 2000.0, ..drafted(1000.0, 2) });
        assert!(account.balance_us() > 1900.0 && account.extra_us(1000.0) < account.balance_us() - 240.0);
        (0..200).for_each(|_| account.observe(plain(1000.0)));
        assert!(account.extra_us(1000.0) > account.balance_us() - 15.0, "{}", account.balance_us());
    }

    #[test]
    fn what_was_saved_pays_half_of_the_next_stake() {
        let mut account = Account::default();
        account.begin(STAKE, (0.0, 0.0), 1000.0);
        account.observe(plain(1000.0));
        account.observe(drafted(1500.0, 3));
        let carried_us = account.end();
        assert!((carried_us - 1512.5).abs() < 1e-3);
        for (prompt_us, balance_us) in [(49_000.0, 500.0), (499_000.0, 2500.0 + 1512.5)] {
            account.begin(STAKE, (carried_us, prompt_us), 1000.0);
            account.observe(plain(1000.0));
            assert!((account.balance_us() - balance_us).abs() < 1e-3, "no more than is there");
        }
    }

    #[test]
    fn a_debt_is_paid_back_before_the_next_draft() {
        let mut account = Account::default();
        account.begin(STAKE, (0.0, 0.0), 1000.0);
        account.observe(plain(1000.0));
        account.observe(drafted(5000.0, 1));
        assert!(account.balance_us() < -3900.0);
        let carried_us = account.end();
        account.begin(STAKE, (carried_us, 0.0), 1000.0);
        let steps = (0..1000).take_while(|_| {
            account.observe(plain(1000.0));
            account.balance_us() < 0.0
        });
        assert!((794..=797).contains(&steps.count()));
    }
}
