//! From HttpIn manifests to the entrance: addresses, secrets and schemas resolved.

use std::sync::Arc;

use super::config::{Config, DEAD_LETTER_HEADROOM_BYTES};
use super::load::LoadedUnit;
use super::settings::{Settings, Unresolved};
use super::units::Error;
use crate::connectors::http::auth::{self, Auth};
use crate::connectors::http::source::{Entrance, Route, Waits};
use crate::connectors::http::tls;
use crate::manifest::http_in::{self, HttpIn};
use crate::manifest::value::Setting;
use crate::unit::context::Context;
use crate::unit::status::{self, State};

/// What of a message limit is kept for subject and headers.
const HEADERS_BYTES: usize = DEAD_LETTER_HEADROOM_BYTES;

pub(super) fn route(
    one: &LoadedUnit,
    entrance: &HttpIn,
    config: &Config,
    settings: &Settings,
    unit: Arc<status::Unit>,
    suspended: Option<String>,
) -> Result<Route, Error> {
    let auth = entrance.auth.as_ref().map(|stated| auth_of(stated, settings)).transpose();
    let auth = auth.map_err(|reason| Error::Unit { unit: one.id.clone(), reason })?;
    let schema = entrance.schema.as_ref().and_then(|name| one.validators.get(name.as_str()).cloned());
    if let Some(why) = &suspended {
        unit.set_state(State::Suspended, Some(why.clone()));
    }
    Ok(Route {
        suspended,
        unit,
        listen: entrance.listen.clone().unwrap_or_else(|| config.ingress_addr.clone()),
        tls: entrance.tls.as_ref().map(|tls| tls::Files { cert: (&tls.cert).into(), key: (&tls.key).into() }),
        path: entrance.path.clone(),
        methods: entrance.methods.clone(),
        to: entrance.to.as_str().to_owned(),
        schema,
        auth,
        body_bytes_max: usize::try_from(entrance.max_body_bytes.0)
            .unwrap_or(usize::MAX)
            .min(config.message_bytes_max().saturating_sub(HEADERS_BYTES)),
    })
}

fn auth_of(stated: &http_in::Auth, settings: &Settings) -> Result<Auth, String> {
    let resolve = |setting: &Setting| settings.resolve(setting).map_err(|error: Unresolved| error.to_string());
    let made = match stated {
        http_in::Auth::None {} => return Ok(Auth::Anybody),
        http_in::Auth::Bearer { token } => Auth::bearer(resolve(token)?.expose()),
        http_in::Auth::Basic { username, password } => {
            Auth::basic(resolve(username)?.expose(), resolve(password)?.expose())
        }
        http_in::Auth::Hmac(hmac) => Auth::signature(resolve(&hmac.secret)?.expose(), &hmac.header, &hmac.prefix),
    };
    made.map_err(|error: auth::Error| error.to_string())
}

pub(super) async fn bind(context: Context, routes: Vec<Route>, config: &Config) -> Result<Entrance, Error> {
    let waits = Waits { drain_max: config.drain / 2, ..Waits::default() };
    Ok(Entrance::bind(context, routes, waits, config.seed).await?)
}
