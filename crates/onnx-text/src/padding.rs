//! Writes rows of tokens into the inputs of a graph, padded to the longest row.

use super::texts::Tokens;

/// An input of the graph.
#[derive(Clone, Debug)]
pub(super) struct GraphInput {
    pub(super) name: String,
    pub(super) kind: InputKind,
    /// Whether its integers have 32 bits instead of 64.
    pub(super) narrow: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputKind {
    Ids,
    Mask,
    Types,
    Positions,
}

/// The padding values of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Padding {
    pub(super) token: u32,
    /// The position of a row's first token.
    pub(super) first_position: u32,
}

impl Padding {
    /// Writes an input of `rows` into `target`, which has the length of the longest row for each
    /// row. Ids, positions and masks are always within 32 bits.
    pub(super) fn fill<N: Copy>(
        self,
        rows: &[&Tokens],
        kind: InputKind,
        number: impl Fn(u32) -> N,
        target: &mut [N],
    ) {
        let longest = target.len() / rows.len().max(1);
        for (row, target) in rows.iter().zip(target.chunks_mut(longest.max(1))) {
            let (own, rest) = target.split_at_mut(row.ids.len().min(longest));
            let copy = |own: &mut [N], ids: &[u32]| {
                for (own, id) in own.iter_mut().zip(ids) {
                    *own = number(*id);
                }
            };
            let pad = match kind {
                InputKind::Ids => {
                    copy(own, &row.ids);
                    self.token
                }
                InputKind::Types => {
                    copy(own, &row.types);
                    0
                }
                InputKind::Mask => {
                    own.fill(number(1));
                    0
                }
                InputKind::Positions => {
                    for (own, position) in own.iter_mut().zip(self.first_position..) {
                        *own = number(position);
                    }
                    // The position of padding, which every position table contains.
                    self.first_position.saturating_sub(1)
                }
            };
            rest.fill(number(pad));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_as_long_as_the_longest_and_nothing_is_left_of_before() {
        let tokens = |ids: &[u32]| Tokens {
            ids: ids.to_vec(),
            types: ids.iter().map(|id| id % 2).collect(),
            ..Tokens::default()
        };
        let rows = [tokens(&[5, 6, 7]), tokens(&[8])];
        let rows: Vec<&Tokens> = rows.iter().collect();
        let padding = Padding {
            token: 1,
            first_position: 2,
        };
        let filled = |kind| {
            let mut target = [-1_i64; 6];
            padding.fill(&rows, kind, i64::from, &mut target);
            target
        };
        assert_eq!(filled(InputKind::Ids), [5, 6, 7, 8, 1, 1]);
        assert_eq!(filled(InputKind::Mask), [1, 1, 1, 1, 0, 0]);
        assert_eq!(filled(InputKind::Types), [1, 0, 1, 0, 0, 0]);
        assert_eq!(filled(InputKind::Positions), [2, 3, 4, 2, 1, 1]);
        let mut narrow = [-1_i32; 6];
        padding.fill(&rows, InputKind::Ids, u32::cast_signed, &mut narrow);
        assert_eq!(narrow, [5, 6, 7, 8, 1, 1]);
    }
}
