//! Expands a node: collects its children from the sources.

use super::claim::Child;
use super::frontier::{Found, Ranked};
use super::{CURSORS_MAX, Scratch, TreeBuilder};
use crate::draft::cost::CostProfile;
use crate::draft::source::{ComputingSource, DraftSource};
use crate::kernels::Instant;
use refrain_trees::NodeIdx;

/// Maximum nodes that a source computes in one pass.
const GROUP_MAX: usize = 8;

impl TreeBuilder {
    /// Expands a node that has just entered the tree.
    pub(super) fn expand(
        &mut self,
        sources: &mut [Box<dyn DraftSource>],
        found: usize,
        node: NodeIdx,
        max_depth: u32,
        costs: &CostProfile,
    ) {
        let Found { depth, reach, cursors, .. } = self.found[found];
        let first_claim = self.claims.len();
        let mut waits = false;
        if depth < max_depth {
            waits = self.ask(sources, cursors, (depth + 1, reach));
            self.drop_excluded(sources, cursors, first_claim);
        }
        self.agree(first_claim);
        if waits && self.ask_computing(sources, found, max_depth, costs) {
            self.drop_excluded(sources, cursors, first_claim);
            self.agree(first_claim);
        }
        self.claims_of[node.index()] = (first_claim as u32, self.claims.len() as u32);
        for i in 0..self.scratch.children.len() {
            let child = self.scratch.children[i];
            let reach = reach * self.drafted(child.source, child.probability);
            if reach < self.config.reach_min {
                continue;
            }
            let first_cursor = self.cursors.len() as u32;
            let claims = &self.claims[child.claims.0 as usize..child.claims.1 as usize];
            let caps = claims.iter().map(|claim| {
                let cap = self.caps[usize::from(claim.source)].after(&claim.evidence);
                self.drafted(claim.source, cap)
            });
            let cap = caps.fold(0.0, f32::max);
            for of_source in claims.chunk_by(|a, b| a.source == b.source) {
                let cursors = of_source.iter().take(CURSORS_MAX);
                self.cursors.extend(cursors.map(|claim| (claim.source, claim.next)));
            }
            let cap = if self.advance(sources, cursors, child) { 1.0 } else { cap };
            self.frontier.push(Ranked { reach, found: self.found.len() as u32, node: None });
            self.found.push(Found {
                token: child.token,
                parent: node,
                depth: depth + 1,
                reach,
                source: child.source,
                cursors: (first_cursor, self.cursors.len() as u32),
                cap,
            });
        }
    }

    /// Probability of a child that is drafted from a claim of this source.
    fn drafted(&self, source: u8, probability: f32) -> f32 {
        // Sources have slots only if claims are weighed.
        let slot = self.slots.get(usize::from(source));
        slot.map_or(probability, |&slot| self.table.drafted(slot, probability))
    }

    /// Advances the computing sources with a cursor at this node that do not claim this child. Returns `true`
    /// if one of them has a cursor below it.
    fn advance(&mut self, sources: &mut [Box<dyn DraftSource>], cursors: (u32, u32), child: Child) -> bool {
        let claims = &self.claims[child.claims.0 as usize..child.claims.1 as usize];
        let mut goes_on = false;
        for at in cursors.0..cursors.1 {
            let (index, cursor) = self.cursors[at as usize];
            if !self.computes[usize::from(index)] || claims.iter().any(|claim| claim.source == index) {
                continue;
            }
            let computing = sources[usize::from(index)].computing();
            if let Some(next) = computing.and_then(|source| source.advance(cursor, child.token)) {
                self.cursors.push((index, next));
                goes_on = true;
            }
        }
        goes_on
    }

    /// Drops the claims from `first_claim` on whose tokens a computing source with a cursor at this node excludes.
    fn drop_excluded(
        &mut self,
        sources: &mut [Box<dyn DraftSource>],
        cursors: (u32, u32),
        first_claim: usize,
    ) {
        for at in cursors.0..cursors.1 {
            let (index, cursor) = self.cursors[at as usize];
            if !self.computes[usize::from(index)] || self.claims.len() == first_claim {
                continue;
            }
            let Some(computing) = sources[usize::from(index)].computing() else { continue };
            // Several sources claim the same tokens.
            let verdicts = &mut self.scratch.verdicts;
            verdicts.clear();
            let mut n_kept = first_claim;
            for of_claim in first_claim..self.claims.len() {
                let claim = self.claims[of_claim];
                let is_known = verdicts.iter().find(|(token, _)| *token == claim.token);
                let is_excluded = match is_known {
                    _ if claim.source == index => false,
                    Some(&(_, is_excluded)) => is_excluded,
                    None => {
                        let is_excluded = computing.excludes(cursor, claim.token);
                        verdicts.push((claim.token, is_excluded));
                        is_excluded
                    }
                };
                if !is_excluded {
                    self.claims[n_kept] = claim;
                    n_kept += 1;
                }
            }
            self.claims.truncate(n_kept);
        }
    }

    /// Collects the claims of the sources at a node's cursors, for a node of the given depth and reach.
    /// Returns `true` if a source that computes was left out.
    fn ask(&mut self, sources: &mut [Box<dyn DraftSource>], cursors: (u32, u32), below: (u32, f32)) -> bool {
        let weighs = self.weighs();
        let mut waits = false;
        let mut start = cursors.0;
        while start < cursors.1 {
            let index = self.cursors[start as usize].0;
            let group = self.cursors[start as usize..cursors.1 as usize].iter();
            let n = group.take_while(|cursor| cursor.0 == index).count() as u32;
            self.scratch.frontier.clear();
            let group = &self.cursors[start as usize..(start + n) as usize];
            self.scratch.frontier.extend(group.iter().map(|&(_, cursor)| cursor));
            let source = &mut sources[usize::from(index)];
            let expansion_us = |source: &mut dyn ComputingSource| source.expansion_us(&self.scratch.frontier);
            if weighs && source.computing().is_some_and(|source| expansion_us(source) > 0.0) {
                waits = true;
            } else {
                self.claim(index, source.as_mut(), below);
            }
            start += n;
        }
        waits
    }

    /// Expands a node with the sources that compute, if that pays. `scratch.children` holds the children from
    /// the other sources. Returns `true` if a source was expanded.
    fn ask_computing(
        &mut self,
        sources: &mut [Box<dyn DraftSource>],
        found: usize,
        max_depth: u32,
        costs: &CostProfile,
    ) -> bool {
        let Found { depth, reach, cursors, .. } = self.found[found];
        // The best child only: the sum of many weak claims may reach 1 although none of them is likely.
        let known = self.scratch.children.first().map_or(0.0, |child| child.probability);
        let mut asked = false;
        for at in cursors.0..cursors.1 {
            let (index, cursor) = self.cursors[at as usize];
            let source = &mut sources[usize::from(index)];
            let Some(computing) = source.computing() else { continue };
            let alone_us = computing.expansion_us(&[cursor]);
            if alone_us <= 0.0 {
                continue; // a lookup, already expanded
            }
            let first_hit = self.table.first_hit(self.slots[usize::from(index)]);
            let alone = reach * (1.0 - known) * first_hit;
            self.scratch.frontier.clear();
            self.scratch.frontier.push(cursor);
            self.find_waiting(index, max_depth);
            let (gain, us) = self.join_waiting(computing, (alone, alone_us), first_hit);
            if self.growth.pays(gain, us, costs) {
                let started = self.is_timed.then(Instant::now);
                computing.prepare(&self.scratch.frontier);
                self.passes_us += started.map_or(0.0, |started| started.elapsed().as_secs_f32() * 1e6);
                self.growth.spend(us, costs);
                self.scratch.frontier.truncate(1);
                self.claim(index, source.as_mut(), (depth + 1, reach));
                asked = true;
            }
        }
        asked
    }

    /// Lists the frontier nodes that wait for this source only, highest reach first.
    fn find_waiting(&mut self, index: u8, max_depth: u32) {
        let Self { found, frontier, cursors, scratch, .. } = self;
        scratch.waiting.clear();
        for &ranked in frontier.iter() {
            let Found { depth, reach, cursors: (start, end), .. } = found[ranked.found as usize];
            // If other sources have cursors there too, they are expanded first.
            if let [(of, cursor)] = cursors[start as usize..end as usize]
                && of == index
                && depth < max_depth
            {
                scratch.waiting.push((Ranked { reach, ..ranked }, cursor));
            }
        }
        scratch.waiting.sort_unstable_by_key(|waiting| std::cmp::Reverse(waiting.0));
        scratch.waiting.truncate(GROUP_MAX - 1);
    }

    /// Adds waiting nodes to the pass in `scratch.frontier` while they raise its gain per µs. Returns the
    /// gain and the µs of the pass.
    fn join_waiting(
        &mut self,
        source: &dyn ComputingSource,
        (mut gain, mut us): (f32, f32),
        first_hit: f32,
    ) -> (f32, f32) {
        let Scratch { frontier, waiting, .. } = &mut self.scratch;
        for &(Ranked { reach, .. }, cursor) in waiting.iter() {
            frontier.push(cursor);
            let (more_gain, more_us) = (gain + reach * first_hit, source.expansion_us(frontier));
            if more_us <= us {
                continue; // already computed: joins at no cost
            }
            if more_gain / more_us < gain / us {
                frontier.pop();
                break;
            }
            (gain, us) = (more_gain, more_us);
        }
        (gain, us)
    }
}
