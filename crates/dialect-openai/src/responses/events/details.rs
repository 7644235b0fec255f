//! Parts of a row besides its text: signatures, encrypted reasoning, and items of types that only
//! their provider defines.

use bytes::BytesMut;
use serde_json::Value;
use volley_types::Details;

use super::{FORMAT, Item, Kind, OPEN, Reasoning, ResponseEvents};
use volley_dialect_kit::envelope;

impl ResponseEvents {
    /// Adds the signature or encrypted reasoning of a row. With `own`, also adds items and events
    /// of types that only the provider defines.
    pub(super) fn details(&mut self, details: &Details, own: bool, out: &mut BytesMut) {
        // The provider's next message is an item of its own.
        if details.begins && own {
            self.continued(|_| false, out);
        }
        let sealed = envelope::signature(details, FORMAT);
        if let Some(sealed) = sealed.or_else(|| envelope::redacted(details, FORMAT)) {
            let place = self.continued(|kind| matches!(kind, Kind::Reasoning(_)), out);
            let place = place.filter(|_| details.redacted.is_none());
            let begun = Kind::Reasoning(Reasoning::default());
            let place = place.unwrap_or_else(|| self.begin(begun, out));
            if let Kind::Reasoning(told) = &mut self.items[place].kind {
                told.encrypted = Some(sealed);
            }
            self.continued(|_| false, out);
        }
        for event in details.events.iter().filter(|_| own) {
            self.passed(event, out);
        }
        for block in details.blocks.iter().filter(|_| own) {
            let place = self.other(block, out);
            self.items[place].kind = Kind::Other(block.clone());
            self.done(place, "completed", out);
        }
    }

    /// Forwards an event of a provider's own item, with the item's index in this response.
    fn passed(&mut self, event: &Value, out: &mut BytesMut) {
        if let Some(item) = event.get("item") {
            self.other(item, out);
            return;
        }
        let id = event["item_id"].as_str().unwrap_or_default();
        let known = self.items.iter().position(|item| item.id == id);
        let (Some(place), Some(kind)) = (known, event["type"].as_str()) else {
            return;
        };
        let mut body = event.clone();
        if let Some(body) = body.as_object_mut() {
            body.remove("type");
            body.remove("sequence_number");
            body.insert("output_index".to_owned(), place.into());
        }
        self.event(kind, body, out);
    }

    /// The index of a provider's own item, which is added if it is new.
    fn other(&mut self, item: &Value, out: &mut BytesMut) -> usize {
        let id = item["id"].as_str();
        let same = |known: &Item| {
            matches!(known.kind, Kind::Other(_)) && known.status == OPEN && Some(&*known.id) == id
        };
        if let Some(place) = self.items.iter().position(same) {
            return place;
        }
        self.continued(|_| false, out);
        let place = self.items.len();
        let id = id.map_or_else(|| self.draft.item_id("item", place), str::to_owned);
        self.begin_as(Kind::Other(item.clone()), id, out)
    }
}
