//! The durables that units had before they had records.

use std::collections::BTreeMap;

use crate::id::{UnitId, UnitKind};
use crate::ports::bus::{DurableInfo, Error};
use crate::unit::context::Context;

/// The newest durable of every unit, with its number.
pub(super) async fn newest(context: &Context) -> Result<BTreeMap<UnitId, (u32, DurableInfo)>, Error> {
    let mut newest: BTreeMap<UnitId, (u32, DurableInfo)> = BTreeMap::new();
    for info in context.bus.durables(&context.names.messages()).await? {
        let Some((id, number)) = parse(&info.config.name) else { continue };
        if newest.get(&id).is_none_or(|(known, _)| *known < number) {
            newest.insert(id, (number, info));
        }
    }
    Ok(newest)
}

/// Reads what [`UnitId::durable`] wrote.
fn parse(name: &str) -> Option<(UnitId, u32)> {
    let (rest, number) = name.rsplit_once('_')?;
    let (kind, unit) = rest.split_once('_')?;
    let kind = [UnitKind::Flow, UnitKind::Sink].into_iter().find(|known| known.as_str() == kind)?;
    let (id, number) = (UnitId::new(kind, unit), number.parse().ok()?);
    (id.durable(number) == name).then_some((id, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_durables_are_read_back_and_others_are_not() {
        let id = UnitId::new(UnitKind::Flow, "price-orders");
        assert_eq!(parse(&id.durable(12)), Some((id, 12)));
        for other in ["flow_a_01", "tool_a_1", "flow_a", "a"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
