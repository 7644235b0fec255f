//! Affinity of requests to replicas: rendezvous hashing with bounded loads. All coordinators
//! compute the same result independently.

use volley_types::chat::{conversation, text_at};
use volley_types::signature::{MESSAGES, PROMPT};
use volley_types::{Input, WorkerId};

use super::View;

/// Bytes of a prompt block, about 64 tokens.
const BLOCK: usize = 256;
/// The most blocks of a prompt that count.
const BLOCKS: usize = 4;
/// A replica accepts requests by hash up to this percentage of its fair share of the load.
const SHARE_PERCENT: u64 = 125;
/// A replica always accepts requests by hash up to this percentage of its capacity.
const ALWAYS_PERCENT: u64 = 25;

/// A hash that is the same in every process.
#[must_use]
pub fn hash(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    mixed(hash)
}

fn mixed(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// The hash of the first blocks of a generation's prompt: of one, two or four whole blocks, so that
/// a conversation that grows keeps its hash. `None` for prompts below one block, whose cached
/// prefix is useless, and for requests with several or streamed rows.
#[must_use]
pub fn prefix(input: &Input) -> Option<u64> {
    let Input::Batch(batch) = input else {
        return None;
    };
    if batch.num_rows() != 1 {
        return None;
    }
    let prompt = batch.column_by_name(PROMPT);
    if let Some(text) = prompt.and_then(|column| text_at(column, 0)) {
        return blocks(text.as_bytes());
    }
    let messages = batch.column_by_name(MESSAGES)?;
    if messages.is_null(0) {
        return None;
    }
    let mut text = String::new();
    for message in conversation(messages, 0)? {
        text.push_str(&message.role);
        text.push('\n');
        text.push_str(&message.content);
        text.push('\n');
        if BLOCK * BLOCKS <= text.len() {
            break;
        }
    }
    blocks(text.as_bytes())
}

fn blocks(prompt: &[u8]) -> Option<u64> {
    let whole = (prompt.len() / BLOCK).min(BLOCKS);
    if whole == 0 {
        return None;
    }
    let counted = 1 << whole.ilog2();
    Some(hash(&prompt[..counted * BLOCK]))
}

/// The replicas of `pool` in the rendezvous order of a key. The order is the same for all callers,
/// and adding or removing a replica only moves its own keys.
#[must_use]
pub fn ranked(views: &[View<'_>], pool: &[usize], key: u64) -> Vec<usize> {
    let mut ranked = pool.to_vec();
    let weight = |worker: &WorkerId| mixed(key ^ hash(worker.as_str().as_bytes()));
    ranked.sort_by_key(|index| std::cmp::Reverse(weight(views[*index].worker)));
    ranked
}

/// Whether a replica may accept one more request by hash: it stays below the bound of its fair
/// share of the load of `pool` (Mirrokni, Thorup, Zadimoghaddam, 2018), or is nearly idle.
#[must_use]
pub fn within_bound(views: &[View<'_>], index: usize, pool: &[usize]) -> bool {
    let view = &views[index];
    let after = u64::from(view.load) + 1;
    if after * 100 <= u64::from(view.capacity) * ALWAYS_PERCENT {
        return true;
    }
    let load: u64 = pool.iter().map(|index| u64::from(views[*index].load)).sum();
    let room: u64 = pool
        .iter()
        .map(|index| u64::from(views[*index].capacity.max(1)))
        .sum();
    let share = (load + 1) * u64::from(view.capacity.max(1)) * SHARE_PERCENT;
    after <= share.div_ceil(room.max(1) * 100)
}
