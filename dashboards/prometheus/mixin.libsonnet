// Dashboards, rules and alerts as a monitoring mixin:
//   (import 'mixin.libsonnet') + { _config+:: { selector: 'job=~"accumaudit.*"' } }
local files = {
  'accumaudit-fleet.json': import '../grafana/fleet.json',
  'accumaudit-run.json': import '../grafana/run.json',
  'accumaudit-ranks.json': import '../grafana/ranks.json',
};

{
  _config:: {
    // How the service is found among the targets of Prometheus.
    selector: 'job="accumaudit"',
    // Where the runbooks are: a copy of docs/, with a slash at the end.
    runbooks: 'https://github.com/OWNER/accumaudit/blob/main/docs/',
  },

  local config = self._config,
  local configured(text) = std.parseYaml(
    std.strReplace(
      std.strReplace(text, 'job="accumaudit"', config.selector),
      'https://github.com/OWNER/accumaudit/blob/main/docs/',
      config.runbooks,
    )
  ),

  grafanaDashboards+:: files,
  prometheusRules+:: configured(importstr 'rules.yml'),
  prometheusAlerts+:: configured(importstr 'alerts.yml'),
}
