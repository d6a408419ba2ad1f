from django.apps import AppConfig
from django.core.checks import register


class GatewayConfig(AppConfig):
    name = "gateway"
    verbose_name = "Pharos"

    def ready(self) -> None:
        from gateway.checks import config_loads

        register(config_loads)
