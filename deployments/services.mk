# Prefect on this machine, by its own commands. Its database, logs and process numbers are in .services/.
PORT ?= 4200
POOL ?= cpu
LIMIT ?= $(if $(filter gpu,$(POOL)),1,4)
SERVER := http://127.0.0.1:$(PORT)/api
PREFECT = env PREFECT_HOME=$(CURDIR)/.services PREFECT_API_URL=$(SERVER) $(BIN)/prefect
HEALTHY = curl --silent --fail --max-time 5 $(SERVER)/health >/dev/null

up: $(RUNS) ## start a Prefect server in the background (PORT=4300)
	@mkdir -p .services
	@if $(HEALTHY); then echo "a server answers at $(SERVER)"; else \
		nohup $(PREFECT) server start --port $(PORT) >.services/server.log 2>&1 & echo $$! >.services/server.pid; \
		for second in $$(seq 1 100000); do sleep 1; \
			if $(HEALTHY); then echo "a server answers at $(SERVER); its log is .services/server.log"; exit 0; fi; \
			kill -0 $$(cat .services/server.pid) 2>/dev/null || { rm .services/server.pid; \
				echo "the server ended: $$(grep . .services/server.log | tail -n 1) (.services/server.log)" >&2; exit 1; }; \
			test $$((second % 15)) -gt 0 || echo "the server starts ($$second s)"; \
		done; fi

deploy: $(RUNS) ## register pools, deployments and automations with it
	@PREFECT_HOME=$(CURDIR)/.services $(BIN)/datamask deploy --server $(SERVER)

worker: $(RUNS) ## work for it until Ctrl-C (POOL=gpu LIMIT=1)
	$(PREFECT) worker start --pool $(POOL) --type process --limit $(LIMIT)

down: ## stop the server
	$(PREFECT) server stop

.PHONY: up deploy worker down
