//! Parts of states that are stored once: most steps touch one member, and few members differ.
//!
//! A part carries the hash of its content, so that a state is hashed and compared without looking into the parts that a step left alone.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use crate::protocol::{Effects, Event};
use crate::world::{Member, NOW, Store};

/// Contents that are shared at a time, for each worker and kind. More are shared anew: a bound on memory.
const SHARED_MAX: usize = 100_000;

#[derive(Debug, Clone)]
pub struct Kept<T> {
    hash: u64,
    value: Arc<T>,
}

/// What a worker shares of one kind.
pub type Shelf<T> = RefCell<HashMap<u64, Arc<T>>>;

impl<T: Clone + Eq + Hash> Kept<T> {
    pub fn new(value: T) -> Self {
        Kept { hash: 0, value: Arc::new(value) }
    }

    pub fn edit(&mut self) -> &mut T {
        self.hash = 0;
        Arc::make_mut(&mut self.value)
    }

    /// To be called before the state is hashed or compared.
    pub fn keep(&mut self, shelf: &'static std::thread::LocalKey<Shelf<T>>) {
        if self.hash != 0 {
            return;
        }
        let mut hasher = DefaultHasher::new();
        self.value.hash(&mut hasher);
        self.hash = hasher.finish().max(1);
        shelf.with_borrow_mut(|shelf| {
            if shelf.len() > SHARED_MAX {
                shelf.clear();
            }
            let shared = shelf.entry(self.hash).or_insert_with(|| self.value.clone());
            if **shared == *self.value {
                self.value = shared.clone();
            }
        });
    }
}

/// What a node does in a state with an event: the member after it, and the effects. A node is a function of both, so it is asked once.
pub struct Steps {
    known: HashMap<u64, (Kept<Member>, Event, Kept<Member>, Effects)>,
}

thread_local! {
    pub static STORES: Shelf<Store> = Shelf::default();
    pub static MEMBERS: Shelf<Member> = Shelf::default();
    static STEPS: RefCell<Steps> = RefCell::new(Steps { known: HashMap::new() });
}

/// To be called before another world: nodes are compared without their settings, the wrong rule among them.
pub fn forget() {
    MEMBERS.with_borrow_mut(HashMap::clear);
    STORES.with_borrow_mut(HashMap::clear);
    STEPS.with_borrow_mut(|steps| steps.known.clear());
}

/// One step of the member's node.
pub fn step(member: &mut Kept<Member>, event: Event) -> Effects {
    member.keep(&MEMBERS);
    let mut hasher = DefaultHasher::new();
    (member.hash, &event).hash(&mut hasher);
    let key = hasher.finish();
    STEPS.with_borrow_mut(|steps| {
        if let Some((before, known, after, effects)) = steps.known.get(&key)
            && before == member
            && *known == event
        {
            *member = after.clone();
            return effects.clone();
        }
        let before = member.clone();
        let effects = member.edit().node.step(NOW, event.clone());
        member.keep(&MEMBERS);
        if steps.known.len() > SHARED_MAX {
            steps.known.clear();
        }
        steps.known.insert(key, (before, event, member.clone(), effects.clone()));
        effects
    })
}

impl<T> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: PartialEq> PartialEq for Kept<T> {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && (Arc::ptr_eq(&self.value, &other.value) || *self.value == *other.value)
    }
}

impl<T: Eq> Eq for Kept<T> {}

impl<T> Hash for Kept<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}
