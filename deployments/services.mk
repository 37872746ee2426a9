# Prefect on this machine, by its own commands. Its database, logs and process numbers are in .services/.
PORT ?= 4200
POOL ?= cpu
LIMIT ?= $(if $(filter gpu,$(POOL)),1,4)
PREFECT = PREFECT_HOME=$(CURDIR)/.services PREFECT_API_URL=http://127.0.0.1:$(PORT)/api $(BIN)/prefect
AUTOMATIONS := deployments/automations.yaml

up: $(READY) ## start a Prefect server in the background, with its work pools (PORT=4300)
	$(PREFECT) server start --background --port $(PORT)
	@until curl --silent --fail http://127.0.0.1:$(PORT)/api/health >/dev/null; do \
		kill -0 $$(cat .services/server.pid) || exit 1; sleep 1; done
	$(PREFECT) work-pool create cpu --type process --overwrite
	$(PREFECT) work-pool create gpu --type process --overwrite

deploy: $(READY) ## register the deployments and automations with it
	$(PREFECT) --no-prompt deploy --all --prefect-file deployments/prefect.yaml
	@for name in $$(sed -n 's/^  - name: //p' $(AUTOMATIONS)); do $(PREFECT) automation delete $$name >/dev/null || true; done
	$(PREFECT) automation create --from-file $(AUTOMATIONS)

worker: $(READY) ## work for it until Ctrl-C (POOL=gpu LIMIT=1)
	$(PREFECT) worker start --pool $(POOL) --limit $(LIMIT)

down: ## stop the server
	$(PREFECT) server stop

.PHONY: up deploy worker down
